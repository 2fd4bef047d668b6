package mutants

var workerRooms = []room{
	{"internal/delivery/guard.go", []bug{
		seed("a last attempt does not continue", "TestARunThatHasAdvancedContinuesWithoutCountingTheAttempt/on_the_last_attempt",
			`case errors.Is(cause, errDeadline):`, `case errors.Is(cause, errDeadline) && !acq.Last:`),
		seed("MAX_RUN_TIME does not end a run", "TestAnAnalysisFailsWhenItsTimeIsExhausted/during_the_run",
			`acq.RunTime > 0 && acq.RunTime <= limit`, `false`),
		seed("every lost lock is acknowledged", "TestEachStepOfADeliveryIsASpanAndAFigure",
			`!over && a.followUp(ctx, last.Lock.Token, last.Lock.ExpiresAt)`, `!over && a.Queue != nil`),
		seed("a cancelled analysis is delivered again", "TestARunWhoseAnalysisIsOverEndsWithinAHeartbeatAndWritesNothing/cancelled,_found_when_it_finishes_true",
			`over && a.Queue != nil ||`, `false ||`),
		seed("the time to start is measured at each acquisition", "TestTimeToStartIsOfTheFirstAcquisitionAndTimeToReadyOfTheLast",
			`acq.Acquired && acq.Grant.Token == 1 {`, `acq.Acquired {`),
		seed("all deliveries of a process are one owner", "TestEachDeliveryIsAnOwnerOfItsOwn",
			`rand.Text()}`, `rand.Text()[:0]}`),
		seed("a stop cuts an acquisition short", "TestAStopDuringTheAcquisitionLeavesNoLock",
			`Start(context.WithoutCancel(ctx), telemetry.Acquire)`, `Start(ctx, telemetry.Acquire)`),
		seed("a stop after the end of a run takes back its attempt", "TestDelivery/StoppedAfterItsDeadline",
			`errors.Is(cause, ErrStopping)`, `errors.Is(context.Cause(ctx), ErrStopping)`),
		seed("a verdict for good is dropped at a stop, and the analysis run again", "TestDelivery/AVerdictDuringAStopIsRecorded",
			`	case errors.As(err, &permanent):`, `	case errors.As(err, &permanent) && ctx.Err() == nil:`),
		seed("a document that not even an error fits into keeps its lock", "TestDelivery/NotEvenAnErrorFits",
			`		return a.retry(ctx, "unrecordable", "the document cannot hold the outcome beside its other fields")`,
			`		return Outcome{Case: Retry, Err: err, Code: "unrecordable"}`),
		seed("the booked task waits for itself", "TestADeliveryKeepsToTheNextAttempt/the_booked_task_itself",
			`early := a.isNext`, `early := func(analysislock.Analysis) bool { return false }`),
		seed("without a queue a delivery waits", "TestADeliveryKeepsToTheNextAttempt/without_a_queue",
			`if a.Queue == nil { // nothing`, `if false { // nothing`),
		seed("a document that not even an error fits into is said to be out of reach", "TestDelivery/NotEvenAnErrorFits",
			`	case errors.Is(err, lease.ErrRefused): // not even an error`, `	case false: // not even an error`),
		seed("a finish that the store did not answer is taken for written", "TestWithoutFirestoreTheAnswerIs503",
			`	}
	return Outcome{Case: FinishUnknown, Err: err}`,
			`	}
	return o`),
	}},
	{"internal/delivery/report.go", []bug{
		seed("a report does not restart the limit between reports", "TestARunThatReportsNothingStalls/with_progress",
			`		r.stall.Reset(r.StallTimeout)`, `		r.stall.Reset(0)`),
		seed("an invalid report restarts the limit between reports", "TestARunThatReportsNothingStalls/with_invalid_reports",
			`	if r.warnings++;`, `	r.receive(orchestrator.Report{})
	if r.warnings++;`),
		seed("each bad report is a line of the log", "TestBadReportsAreWarningsAndTheRunGoesOn",
			`r.warnings <= maxReportWarnings`, `r.warnings > 0`),
		seed("a warning shows the report", "TestASynchronousCheckpointReturnsWhenItIsCommittedOrCannotBe",
			`r.Invalid("the document cannot hold it beside its other fields")`, `text, _ := json.Marshal(c.Value)
		r.Invalid(string(text))`),
		seed("each report is committed at once", "TestReportsCostOneCommitACheckpointInterval/ten_reports_a_second",
			`r.CheckpointInterval, nil)`, `0, nil)`),
		seed("a synchronous checkpoint returns before its commit", "TestASynchronousCheckpointReturnsWhenItIsCommittedOrCannotBe",
			`	case err := <-written:
		return err`, `	default:
		return nil`),
	}},
	{"internal/delivery/booking.go", []bug{
		seed("a continuation counts the attempt", "TestARunThatHasAdvancedContinuesWithoutCountingTheAttempt/booked",
			`analysislock.OutcomeContinued, true)`, `analysislock.OutcomeContinued, false)`),
		seed("a run continues without a new checkpoint", "TestARunWithoutANewCheckpointFailsAtItsDeadline/the_one_it_was_given",
			`!a.hold.Advanced()`, `err != nil && false`),
		seed("a run that has lost its lock continues", "TestARunThatLostItsLockDoesNotContinue",
			`	case errors.Is(err, lease.ErrLost):
		return a.finished(ctx, o, err), true`, `	case false:
		return a.finished(ctx, o, err), true`),
		seed("a stop after the deadline loses the last checkpoint", "TestARunThatHasAdvancedContinuesWithoutCountingTheAttempt/though_the_worker_is_stopped_after_RUN_TIMEOUT",
			`context.WithTimeout(context.WithoutCancel(ctx), 3*bookTimeout)`, `context.WithTimeout(ctx, 3*bookTimeout)`),
		seed("a stop books a delivery although the lock could not be released", "TestAStoppedRunIsBookedAgain/Firestore_does_not_answer,_so_the_lock_is_kept",
			`	if a.release(ctx, analysislock.OutcomeShuttingDown, true) && a.Queue`,
			`	a.release(ctx, analysislock.OutcomeShuttingDown, true)
	if a.Queue`),
		seed("a stop costs an attempt", "TestDelivery/StoppedDuringTheRun",
			`a.release(ctx, analysislock.OutcomeShuttingDown, true)`, `a.release(ctx, analysislock.OutcomeShuttingDown, false)`),
		seed("a stop's release and booking do not have all of its time", "TestReleaseAndBookingUseTheRemainingTimeOfAStop/a_slow_CreateTask",
			`	_ = errors.As(context.Cause(ctx), &stop)`, `	_ = errors.As(ErrStopping, &stop)`),
		seed("a stop cuts the booking of a follow-up short", "TestAStopDoesNotCutAFollowUpShort",
			`context.WithTimeout(context.WithoutCancel(ctx), bookTimeout)`,
			`context.WithTimeout(ctx, bookTimeout)`),
		seed("a duplicate waits 5 s for a dark queue", "TestWithoutABookingADuplicateIsNotAcknowledged",
			`bookTimeout = 2 * time.Second`, `bookTimeout = 5 * time.Second`),
		seed("a follow-up is timed by the worker's clock", "TestAWorkersClockDecidesNothingAboutAnothersLock/1h0m0s",
			`expires.Add(followDelay)`, `time.Now().Add(a.acq.Remaining+followDelay)`),
		seed("Retry-After is counted by the worker's clock", "TestAWorkersClockDecidesNothingAboutAnothersLock/1h0m0s",
			`RetryIn: a.acq.Remaining}
	if a.followUp`, `RetryIn: time.Until(a.acq.ExpiresAt)}
	if a.followUp`),
		seed("a follow-up's name lacks the token", "TestEachLockHasAFollowUpOfItsOwn",
			`strconv.FormatInt(token, 10), expires`, `strconv.Itoa(0), expires`),
		seed("the delivery in the place of a stopped run has one name for ever", "TestAStoppedRunOfARecreatedDocumentIsBookedToo",
			`a.Kind.task("replace", a.id, a.owner)`, `a.Kind.task("replace", a.id)`),
		seed("a follow-up's name lacks the expiry", "TestFollowUpsOfALongRunEndWithIt",
			`, expires.UTC().Format(time.RFC3339Nano))`, `)`),
		seed("the follow-up itself is acknowledged because its name is taken", "TestTheDeliveryThatIsTheFollowUpIsNotAcknowledged",
			`name != a.task && a.bookAt(`, `a.bookAt(`),
		seed("the next attempt is booked before the commit", "TestAFailureForNowIsReleasedThenBookedThenAcknowledged/booked",
			`		if next, err = a.hold.Retry(`, `		a.bookNext(ctx, time.Now().Add(wait))
		if next, err = a.hold.Retry(`),
		seed("a run that fails for now answers retry though it lost its lock", "TestALostLockIsFollowedUp/taken,_and_it_fails",
			`if lost != nil {`, `if false {`),
		seed("the next attempt is booked though the lock is kept", "TestAFailureForNowIsReleasedThenBookedThenAcknowledged/the_lock_cannot_be_released",
			`released && a.bookNext(`, `(released || true) && a.bookNext(`),
		seed("after a crash another task is booked", "TestAFailureForNowIsReleasedThenBookedThenAcknowledged/the_booking_fails",
			`a.bookNext(ctx, a.acq.ExpiresAt)`, `a.bookNext(ctx, time.Now())`),
		seed("a random factor below 1 shortens the wait", "TestTheWaitDoublesFromItsLeastToItsLongest",
			`wait + time.Duration(jitter*`, `wait - time.Duration(jitter*`),
		seed("a follow-up comes at the very expiry", "TestAFollowUpComesAfterTheExpiryAndMayLastAsLongAsARun",
			`expires.Add(followDelay)`, `expires`),
	}},
	{"lease/analysislock/analysislock.go", []bug{
		seed("a delivery runs before the next attempt is due", "internal/delivery.TestADeliveryKeepsToTheNextAttempt/a_duplicate",
			`!d.Waits() ||`, `d.Lock.Owner == "" ||`),
		seed("an acquisition leaves the time of the next attempt", "internal/delivery.TestAFailureForNowIsReleasedThenBookedThenAcknowledged/booked",
			`	d.NextAttemptAt = time.Time{}
	if d.StartedAt`, `	if d.StartedAt`),
	}},
	{"lease/rules.go", []bug{seed("a delivery is in time at the due time only", "internal/delivery.TestADeliveryKeepsToTheNextAttempt/2_s_early",
		`maxEarly = 2 * time.Second`, `maxEarly = time.Second`)}},
	{"internal/delivery/recover.go", []bug{
		seed("recovery does not mark what it books", "TestRecoveryBooksOrphanedAnalyses",
			`next, err := g.Orphans.MarkDue(ctx, read)`, `next, err := read.At, error(nil)`),
		seed("a recovery's name lacks the token", "TestTheNameOfARecoverysTaskHasTheToken",
			`nextName(d.ID, d.Lock.Token, next)`, `nextName(d.ID, 0, next)`),
		seed("a booking of a recovery that fails cancels the others", "TestABookingThatFailsCancelsNoOtherAnd32AreMadeAtATime",
			`	var booking errgroup.Group`, `	booking, ctx := errgroup.WithContext(ctx)`),
	}},
	{"worker/guard.go", []bug{seed("a stop does not say by when it ends", "internal/workerservice.TestAStopNamesTheDeadlineOfTheReleases",
		`g.stop(stop)`, `g.stop(ErrStopping)`)}},
	{"internal/delivery/outcome.go", []bug{
		seed("a failure for now that is not booked is acknowledged", "TestAFailureForNowIsReleasedThenBookedThenAcknowledged/the_booking_fails",
			`Retry:              {code: http.StatusInternalServerError,`, `Retry:              {code: http.StatusOK,`),
		seed("a waiting delivery that books nothing is acknowledged", "TestADeliveryKeepsToTheNextAttempt/a_duplicate_that_books_nothing",
			`Waiting:            {code: http.StatusConflict,`, `Waiting:            {code: http.StatusOK,`),
		seed("a caller that is not Cloud Tasks is answered with a success", "TestATaskThatCanNeverSucceedIsRejected/of_a_caller_without_a_task",
			`from > 0 && o.Task != "" &&`, `from > 0 &&`),
		seed("a missing analysis is rejected at the first try", "TestATaskThatCanNeverSucceedIsRejected/missing,_at_the_fifth_try",
			`reason: "not_found", tries: 6}`, `reason: "not_found", tries: 1}`),
		seed("a continuation that is not booked is acknowledged", "TestARunThatHasAdvancedContinuesWithoutCountingTheAttempt/not_booked",
			`Continued:          {code: http.StatusInternalServerError,`, `Continued:          {code: http.StatusOK,`),
		seed("Retry-After is rounded down", "TestRetryAfterIsRoundedUp",
			`math.Ceil(`, `math.Floor(`),
		seed("locked without a booking is answered with a 2xx", "TestWithoutABookingADuplicateIsNotAcknowledged",
			`Locked:             {code: http.StatusConflict,`, `Locked:             {code: http.StatusOK,`),
		seed("explored: locked without a booking is answered with a 2xx", everyInterleaving,
			`Locked:             {code: http.StatusConflict,`, `Locked:             {code: http.StatusOK,`),
	}},
	{"internal/delivery/server.go", []bug{
		seed("a worker takes any number of deliveries", "TestABusyWorkerAnswersBusyBeforeFirestoreIsRead",
			`s.Begin(s.MaxRuns)`, `s.Begin(0)`),
		seed("a recovery takes a delivery's place", "TestNeitherARecoveryNorAnIncompleteRequestIsCounted",
			`_ func() error) Outcome {
	defer s.Track()()
`,
			`begin func() error) Outcome {
	_ = begin()
`),
		seed("half a request takes a place", "TestNeitherARecoveryNorAnIncompleteRequestIsCounted",
			`	d, err := read(c.Response(), r, g.Kind)
`,
			`	full := begin()
	begin = func() error { return full }
	d, err := read(c.Response(), r, g.Kind)
`),
		seed("recovery is open to everybody", "TestAForgedCallIsRefusedBeforeAnythingIsRead",
			`refused := s.refused(c.Request()); refused {`,
			`refused := s.refused(c.Request()); refused && message != "recovery" {`),
		seed("the body is read before the caller is known", "TestTheBodyOfAForgedCallIsNotRead",
			"\tif refusal, refused := s.refused(c.Request())",
			"\t_, _ = io.ReadAll(c.Request().Body)\n\tif refusal, refused := s.refused(c.Request())"),
	}},
	{"internal/taskqueue/queue.go", []bug{seed("a name that is taken is an error", "TestBookingTwiceIsBookingOnce",
		`		case code == codes.AlreadyExists:
			return true, nil
`,
		``)}},
}
