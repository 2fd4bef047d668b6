package mutants

var workerRooms = []room{
	{"worker/guard.go", []bug{
		{
			name: "all deliveries of a process are one owner",
			old:  `rand.Text() //`,
			new:  `rand.Text()[:0] //`,
			test: "TestEachDeliveryIsAnOwnerOfItsOwn/embedded",
		},
		{
			name: "a stop cuts an acquisition short",
			old:  `AcquireAnalysisLock(context.WithoutCancel(ctx), `,
			new:  `AcquireAnalysisLock(ctx, `,
			test: "TestAStopDuringTheAcquisitionLeavesNoLock/embedded",
		},
		{
			name: "a stop books a delivery although the lock could not be released",
			old:  `		if g.release(ctx, id, owner, true) && g.replace(`,
			new: `		g.release(ctx, id, owner, true)
		if g.replace(`,
			test: "TestAStoppedRunIsBookedAgain/Firestore_is_dark,_so_the_lock_is_kept",
		},
		{
			name: "a stop costs an attempt",
			old:  `g.release(ctx, id, owner, true)`,
			new:  `g.release(ctx, id, owner, false)`,
			test: "TestDelivery/StoppedDuringTheRun/embedded",
		},
		{
			name: "a finish that the store did not answer is taken for written",
			old:  `	return Outcome{Case: Unfinished, Err: err}`,
			new:  `	return o`,
			test: "TestADarkFirestoreAnswers503",
		},
	}},
	{"worker/booking.go", []bug{
		{
			name: "a follow-up's name lacks the token",
			old:  `d.AnalysisID, strconv.FormatInt(acq.Grant.Token, 10), acq`,
			new:  `d.AnalysisID, strconv.Itoa(0), acq`,
			test: "TestEachLockHasAFollowUpOfItsOwn",
		},
		{
			name: "a follow-up is made of the holder's memory of its lock",
			old:  `if acq.Own {`,
			new:  `if false {`,
			test: "TestWhatIsBookedIsMadeOfTheStoresLock",
		},
		{
			name: "explored: a follow-up is made of the holder's memory of its lock",
			old:  `if acq.Own {`,
			new:  `if false {`,
			pkg:  "worker/explore",
			test: everyInterleaving,
			says: replayedStep,
		},
		{
			name: "the delivery in the place of a stopped run has one name for ever",
			old:  `taskqueue.Name("replace", id, owner)`,
			new:  `taskqueue.Name("replace", id)`,
			test: "TestAStoppedRunOfADocumentMadeAnewIsBookedToo",
		},
		{
			name: "a follow-up's name lacks the expiry",
			old:  `, acq.ExpiresAt.UTC().Format(time.RFC3339Nano))`,
			new:  `)`,
			test: "TestFollowUpsOfALongRunEndWithIt",
		},
		{
			name: "the follow-up itself is acknowledged because its name is taken",
			old:  `name != d.Task && g.book(`,
			new:  `g.book(`,
			test: "TestTheDeliveryThatIsTheFollowUpIsNotAcknowledged",
		},
		{
			name: "a follow-up comes at the very expiry",
			old:  `acq.ExpiresAt.Add(followDelay)`,
			new:  `acq.ExpiresAt`,
			test: "TestAFollowUpComesAfterTheExpiryAndMayLastAsLongAsARun",
		},
	}},
	{"worker/recover.go", []bug{{
		name: "a recovery's name lacks the hour",
		old:  `at.UTC().Format("2006-01-02T15")`,
		new:  `at.UTC().Format("")`,
		test: "TestRecoveryBooksAgainInTheNextHour",
	}}},
	{"worker/outcome.go", []bug{
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
			pkg:  "worker/explore",
			test: everyInterleaving,
			says: replayedStep,
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
			old:  `_ func(id string) error) Outcome {
	defer s.Pass()()
`,
			new: `begin func(id string) error) Outcome {
	_ = begin("")
`,
			test: "TestNeitherARecoveryNorHalfARequestTakesAPlace",
		},
		{
			name: "half a request takes a place",
			old: `	id, err := readTask(c.Response(), r)
`,
			new: `	full := begin("")
	begin = func(string) error { return full }
	id, err := readTask(c.Response(), r)
`,
			test: "TestNeitherARecoveryNorHalfARequestTakesAPlace",
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
