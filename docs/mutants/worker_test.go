package mutants

var workerRooms = []room{
	{"worker/guard.go", []bug{
		{
			name: "all deliveries of a process are one owner",
			old:  `rand.Text()}`,
			new:  `rand.Text()[:0]}`,
			test: "TestEachDeliveryIsAnOwnerOfItsOwn",
		},
		{
			name: "a stop cuts an acquisition short",
			old:  `Start(context.WithoutCancel(ctx), telemetry.Acquire)`,
			new:  `Start(ctx, telemetry.Acquire)`,
			test: "TestAStopDuringTheAcquisitionLeavesNoLock",
		},
		{
			name: "a verdict for good is dropped at a stop, and the analysis run again",
			old:  `	case errors.As(err, &permanent):`,
			new:  `	case errors.As(err, &permanent) && ctx.Err() == nil:`,
			test: "TestDelivery/AVerdictDuringAStopIsRecorded",
		},
		{
			name: "a document that not even an error fits into keeps its lock",
			old: `		a.release(ctx, false)
		return Outcome{Case: Retry, Err: err, Code: "unrecordable"}`,
			new:  `		return Outcome{Case: Retry, Err: err, Code: "unrecordable"}`,
			test: "TestDelivery/NotEvenAnErrorFits",
		},
		{
			name: "a document that not even an error fits into is said to be out of reach",
			old:  `	case errors.Is(err, lease.ErrRefused): // not even an error`,
			new:  `	case false: // not even an error`,
			test: "TestDelivery/NotEvenAnErrorFits",
		},
		{
			name: "a finish that the store did not answer is taken for written",
			old: `	}
	return Outcome{Case: Unfinished, Err: err}`,
			new: `	}
	return o`,
			test: "TestWithoutFirestoreTheAnswerIs503",
		},
	}},
	{"worker/booking.go", []bug{
		{
			name: "a stop books a delivery although the lock could not be released",
			old:  `	if a.release(ctx, true) && a.Queue`,
			new: `	a.release(ctx, true)
	if a.Queue`,
			test: "TestAStoppedRunIsBookedAgain/Firestore_is_dark,_so_the_lock_is_kept",
		},
		{
			name: "a stop costs an attempt",
			old:  `a.release(ctx, true)`,
			new:  `a.release(ctx, false)`,
			test: "TestDelivery/StoppedDuringTheRun",
		},
		{
			name: "a stop's release and booking do not have all of its time",
			old:  `	_ = errors.As(context.Cause(ctx), &stop)`,
			new:  `	_ = errors.As(ErrStopping, &stop)`,
			test: "TestReleaseAndBookingUseTheRemainingTimeOfAStop/a_slow_CreateTask",
		},
		{
			name: "a stop cuts the booking of a follow-up short",
			old:  `context.WithTimeout(context.WithoutCancel(ctx), bookTimeout)`,
			new:  `context.WithTimeout(ctx, bookTimeout)`,
			test: "TestAStopDoesNotCutAFollowUpShort",
		},
		{
			name: "a duplicate waits 5 s for a dark queue",
			old:  `bookTimeout = 2 * time.Second`,
			new:  `bookTimeout = 5 * time.Second`,
			test: "TestWithoutABookingADuplicateIsNotAcknowledged",
		},
		{
			name: "a follow-up is timed by the worker's clock",
			old:  `At: acq.ExpiresAt.Add(followDelay)`,
			new:  `At: time.Now().Add(acq.Remaining + followDelay)`,
			test: "TestAWorkersClockDecidesNothingAboutAnothersLock/1h0m0s",
		},
		{
			name: "Retry-After is counted by the worker's clock",
			old:  `RetryIn: acq.Remaining}`,
			new:  `RetryIn: time.Until(acq.ExpiresAt)}`,
			test: "TestAWorkersClockDecidesNothingAboutAnothersLock/1h0m0s",
		},
		{
			name: "a follow-up's name lacks the token",
			old:  `a.id, strconv.FormatInt(acq.Grant.Token, 10), acq`,
			new:  `a.id, strconv.Itoa(0), acq`,
			test: "TestEachLockHasAFollowUpOfItsOwn",
		},
		{
			name: "the delivery in the place of a stopped run has one name for ever",
			old:  `taskqueue.Name("replace", a.id, a.owner)`,
			new:  `taskqueue.Name("replace", a.id)`,
			test: "TestAStoppedRunOfARecreatedDocumentIsBookedToo",
		},
		{
			name: "a follow-up's name lacks the expiry",
			old:  `, acq.ExpiresAt.UTC().Format(time.RFC3339Nano))`,
			new:  `)`,
			test: "TestFollowUpsOfALongRunEndWithIt",
		},
		{
			name: "the follow-up itself is acknowledged because its name is taken",
			old:  `name != a.task && a.book(`,
			new:  `a.book(`,
			test: "TestTheDeliveryThatIsTheFollowUpIsNotAcknowledged",
		},
		{
			name: "a follow-up comes at the very expiry",
			old:  `acq.ExpiresAt.Add(followDelay)`,
			new:  `acq.ExpiresAt`,
			test: "TestAFollowUpComesAfterTheExpiryAndMayLastAsLongAsARun",
		},
	}},
	{"worker/recover.go", []bug{
		{
			name: "a recovery's name lacks the hour",
			old:  `at.UTC().Format("2006-01-02T15")`,
			new:  `at.UTC().Format("")`,
			test: "TestRecoveryBooksAgainInTheNextHour",
		},
		{
			name: "a recovery's name lacks the token",
			old:  `strconv.FormatInt(token, 10)`,
			new:  `strconv.Itoa(0)`,
			test: "TestRecoveryBooksAgainAfterASecondCrashWithinTheHour",
		},
		{
			name: "the hour in a recovery's name is the worker's",
			old:  `at.UTC().Format(`,
			new:  `time.Now().UTC().Format(`,
			test: "TestTheHourInARecoverysNameIsTheStores",
		},
		{
			name: "a booking of a recovery that fails cancels the others",
			old:  `	var booking errgroup.Group`,
			new:  `	booking, ctx := errgroup.WithContext(ctx)`,
			test: "TestABookingThatFailsCancelsNoOther",
		},
	}},
	{"cmd/worker/service/service.go", []bug{{
		name: "a stop does not say by when it ends",
		old:  `cancel(&worker.StopError{Deadline: time.Now().Add(cfg.limits.Drain - cfg.limits.Answers)})`,
		new:  `cancel(worker.ErrStopping)`,
		test: "TestAStopNamesTheDeadlineOfTheReleases",
	}}},
	{"worker/outcome.go", []bug{
		{
			name: "Retry-After is rounded down",
			old:  `math.Ceil(`,
			new:  `math.Floor(`,
			test: "TestRetryAfterIsRoundedUp",
		},
		{
			name: "locked without a booking is answered with a 2xx",
			old:  `Locked:             {code: http.StatusConflict,`,
			new:  `Locked:             {code: http.StatusOK,`,
			test: "TestWithoutABookingADuplicateIsNotAcknowledged",
		},
		{
			name: "explored: locked without a booking is answered with a 2xx",
			old:  `Locked:             {code: http.StatusConflict,`,
			new:  `Locked:             {code: http.StatusOK,`,
			pkg:  "worker/proof",
			test: everyInterleaving,
		},
	}},
	{"worker/server.go", []bug{
		{
			name: "a worker takes any number of deliveries",
			old:  `s.Begin(s.MaxRuns)`,
			new:  `s.Begin(0)`,
			test: "TestABusyWorkerAnswersBusyBeforeFirestoreIsRead",
		},
		{
			name: "a recovery takes a delivery's place",
			old: `_ func(id string) error) Outcome {
	defer s.Track()()
`,
			new: `begin func(id string) error) Outcome {
	_ = begin("")
`,
			test: "TestNeitherARecoveryNorAnIncompleteRequestIsCounted",
		},
		{
			name: "half a request takes a place",
			old: `	id, err := readTask(c.Response(), r)
`,
			new: `	full := begin("")
	begin = func(string) error { return full }
	id, err := readTask(c.Response(), r)
`,
			test: "TestNeitherARecoveryNorAnIncompleteRequestIsCounted",
		},
		{
			name: "recovery is open to everybody",
			old:  `refused := s.refused(c.Request()); refused {`,
			new:  `refused := s.refused(c.Request()); refused && message != "recovery" {`,
			test: "TestAForgedCallIsRefusedBeforeAnythingIsRead",
		},
		{
			name: "the body is read before the caller is known",
			old:  "\tif refusal, refused := s.refused(c.Request())",
			new:  "\t_, _ = io.ReadAll(c.Request().Body)\n\tif refusal, refused := s.refused(c.Request())",
			test: "TestTheBodyOfAForgedCallIsNotRead",
		},
	}},
	{"worker/taskqueue/queue.go", []bug{{
		name: "a name that is taken is an error",
		old: `		case code == codes.AlreadyExists:
			return true, nil
`,
		test: "TestBookingTwiceIsBookingOnce",
	}}},
}
