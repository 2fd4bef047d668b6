package mutants

// libraryRooms are the bugs of Do and Submit.
var libraryRooms = []room{
	{"worker/do.go", []bug{
		seed("a key used with other parameters returns the first result", "TestEveryCallOfDoHasTheResultOfTheFirst/other_parameters/embedded",
			`params != "" && stored != ""`, `params != "" && stored == ""`),
		seed("a key that has failed without a cause returns a result", "TestDoRefusesWhatCannotBeDone",
			`d.Status == analysislock.Failed:`, `d.Status == analysislock.Failed && d.Error != nil:`),
		seed("the first caller gets another value than the later ones", "TestEveryCallOfDoHasTheResultOfTheFirst/a_result/embedded",
			`			value, failure = orchestrator.Storable(value)
`, `			_, failure = orchestrator.Storable(value)
`),
		seed("a call of Do runs on after the end of its context", "TestACallThatEndsReleasesTheLock/the_caller's_context",
			`context.AfterFunc(ctx, func`, `context.AfterFunc(work, func`),
		seed("Shutdown does not end a call of Do", "TestACallThatEndsReleasesTheLock/Shutdown",
			`context.AfterFunc(work, func`, `context.AfterFunc(ctx, func`),
		seed("a call of Do takes the place of a delivery", "TestDoTakesNoPlaceOfADelivery",
			`defer g.server.Track()()`, `_ = g.server.Begin(0)
	defer g.server.End()`),
		seed("a function that has passed its deadline does not continue", "TestARunOfDoThatPassesItsDeadline/with_a_checkpoint",
			` o.Case == delivery.Continued,`, ``),
		seed("a record is deleted while its function runs", "TestARecordIsKeptFromItsLastChange",
			`= o.Keep, true, 0`, `= o.Keep, false, 0`),
	}},
	{"repo/analyses.go", []bug{seed("the tokens of a record that is created anew begin again", "worker.TestALateResultIsRefused/embedded",
		`lease.Fresh(read).Token`, `lease.Fresh(read.Truncate(time.Millisecond)).Token`)}},
	{"internal/delivery/submit.go", []bug{
		seed("a document that a crash left without a delivery is not delivered", "worker.TestSubmitIsIdempotent/analysis/embedded",
			`err == nil && g.Queue != nil`, `err == nil && s.Created && g.Queue != nil`),
		seed("each submission books a delivery", "worker.TestSubmitIsIdempotent/analysis/embedded",
			`iso8601.Format(d.CreatedAt)`, `iso8601.Format(d.CreatedAt)+fmt.Sprintf("%p", &s)`),
		seed("another input counts as a repeated submission", "worker.TestSubmitIsIdempotent/another_vocabulary/embedded",
			`DeepEqual(d.Input, input)`, `DeepEqual(d.Input, d.Input)`),
	}},
	{"internal/delivery/booking.go", []bug{seed("the tasks of each kind call the route of analyses", "worker.TestAllTasksOfAKindCallItsRoute",
		`g.Kind.IDField, g.Kind.Path,`, `"", "",`)}},
	{"internal/delivery/guard.go", []bug{seed("two kinds share the names of their tasks", "worker.TestAllTasksOfAKindCallItsRoute",
		`parts = append(parts, "kind "+other)`, `_ = other`)}},
}
