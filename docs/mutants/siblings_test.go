package mutants

var siblingRooms = []room{
	{"cmd/operator-manager/operators.go", []bug{seed("without a list there are no operators", "TestWithoutAListTheSeedsOperatorsAreBuiltIn",
		`		data, err = builtIn, nil
`, `		_ = builtIn
`)}},
	{"cmd/operator-manager/main.go", []bug{seed("LANG counts before LC_ALL", "TestTheTextsAreInTheLanguageOfTheLocale",
		`cmp.Or(s.getenv("LC_ALL"), s.getenv("LC_MESSAGES"), s.getenv("LANG"))`, `cmp.Or(s.getenv("LANG"), s.getenv("LC_ALL"), s.getenv("LC_MESSAGES"))`)}},
	{"internal/doclock/page.go", []bug{seed("a page of doclock locks without its server", "TestThePageAndItsFilesAreServedAsTheyAre",
		`		data = append(data, ownEndpoint...)
`, ``)}},
	{"lease/projectlock/telemetry.go", []bug{seed("entering read-only lacks seed 000's name", "TestEachEventIsATelemetryLineWithItsFields",
		`if e.Type == ReadonlyEntered {`, `if false {`)}},
	{"orchestrator/count.go", []bug{seed("a document continues from the checkpoint of another text", "TestBuiltinContinuesFromACheckpointWithTheSameResult",
		` && c.SHA256 == sum(content[:c.Bytes])`, ``)}},
	{"orchestrator/child.go", []bug{
		seed("a program gets the telemetry's secret", "TestProgramGetsOnlyTheListedVariables",
			`open && strings.HasPrefix(name, beginning)`, `open && beginning != "MODEL"`),
		seed("a program gets the trace of its worker's start", "TestProgramGetsOnlyTheListedVariables",
			`name == "TRACEPARENT" || name == "TRACESTATE" || !`, `!`),
	}},
	{"internal/doclock/quota.go", []bug{
		seed("a session takes locks without limit", "TestTheLocksOfASessionAreBounded", `len(claims) >= limit`, `len(claims) > 99`),
		seed("a lock counts after its expiry", "TestTheLocksOfASessionAreBounded", `func() { q.change(session, key, math.MaxInt, func(*claim) {}) }`, `func() {}`),
		seed("a closed socket counts", "TestTheSocketsOfASessionAreBounded", `	s.sockets.end(session, key)
`, ``),
	}},
	{"internal/doclock/pusher.go", []bug{seed("Pusher sockets are not counted", "TestTheSocketsOfASessionAreBounded",
		`s.takeSocket(caller.Owner, r); err != nil {`, `s.work.Err(); err != nil {`)}},
	{"internal/doclock/lock.go", []bug{
		seed("a lock that another instance acquired is not counted", "TestTheLocksOfASessionAreBounded", `		s.rooms.keep(q.session, lockKey{q.room, q.owner}, s.locks.TTL())
`, ``),
		seed("a refused lock counts", "TestTheLocksOfASessionAreBounded", `	defer s.rooms.end(q.session, key)
`, ``),
	}},
	{"internal/lifecycle/lifecycle.go", []bug{seed("a page in clear asks for https", "internal/doclock.TestEveryAnswerHasTheSecurityHeaders",
		`	if TLS(r) {`, `	if r != nil {`)}},
	{"internal/cloudrun/resources.go", []bug{seed("an analysis expires before its task", "internal/workerservice.TestABadEnvironmentIsNamed/kept_too_short",
		`keep > 0 && keep < 32*24*time.Hour`, `keep < 0`)}},
	{"repo/analyses.go", []bug{seed("delete erases a locked analysis", "TestAnOperatorsChanges/ADeletedAnalysisIsLostToItsRunAlsoIfItIsCreatedAgain/embedded",
		`		_, err = lease.Reopen(c.Doc.Lock, c.At)
`, ``)}},
	{"cmd/internal/operate/client.go", []bug{seed("a cancelled analysis never expires", "cmd/taskguard.TestACancelledAnalysisIsKeptAsTheWorkersKeepThoseThatTheyFinish",
		`o.Keep = e.KeepFinished()`, `_ = e.KeepFinished()`)}},
	{"orchestrator/child.go", []bug{seed("a program's last report is lost without a newline", "TestAProgramReportsOnREPORT_FD",
		`	c.reported.end()
`,
		``)}},
	{"orchestrator/report.go", []bug{
		seed("a result that is null ends a run that reports", "TestAnEndpointReportsByLines",
			`if string(other["result"]) == "null" &&`, `if false &&`),
		seed("a report that is not UTF-8 is written", "TestAProgramReportsOnREPORT_FD", `	if !utf8.Valid(line) {`, `	if false {`),
		seed("an endpoint's second result replaces its first", "TestAnEndpointReportsByLines", `		if !s.ended() {`, `		if true {`),
	}},
	{"lease/rules.go", []bug{seed("a new record's token does not come of the time", "lease/documentlock.TestLocks/TokensGrowOverDeletion",
		`return Lease{Token: now.UnixMicro() - 1}`, `return Lease{}`)}},
	{"lease/documentlock/documentlock.go", []bug{
		seed("an expired lock is extended", "TestLocks/AHeartbeatOfAnExpiredLockFindsNone",
			`	case !lease.Held(c.Doc.Lease, c.At):
		return ErrNotLocked
	case c.Doc.Owner`,
			`	case c.Doc.Owner`),
		seed("another's lock is released", "TestLocks/AReleaseByAnotherLeavesTheLock",
			`	case c.Doc.Owner != owner:
		return ErrNotYours
`,
			``),
		seed("a token is lower than one of a record that was deleted meanwhile", "TestATokenIsLargerThanThatOfARecordMadeAndDeletedMeanwhile",
			`next.Token = max(next.Token, lease.Fresh(c.At).Token)`, `_ = c.At`),
		seed("a save is confirmed under any token", "TestLocks/ASaveIsConfirmedOnlyForTheHolderUnderItsToken",
			`s.Mine && c.Doc.Token != token`, `s.Mine && token == 0`),
	}},
	{"lease/documentlock/sweep.go", []bug{seed("a sweep deletes a live lock", "TestASweepNeverDeletesALiveLock",
		`!c.Exists || lease.Held(c.Doc.Lease, c.At)`, `!c.Exists`)}},
	{"lease/documentlock/feed.go", []bug{
		seed("an older event is reported after a newer one", "TestEventsAreOrderedIfChangesAreNot",
			`r.loaded && !c.At.After(r.cell.At)`, `r.loaded && c.At.Equal(r.cell.At)`),
		seed("an expiry is reported by the sweep alone", "TestFeed/Run/SubscribingWhileTheStreamIsDownGivesTheCurrentStateAndExpiries",
			`due := c.Asked.Add(`, `due := c.Asked.Add(time.Hour + `),
	}},
	{"repo/rooms.go", []bug{seed("delete erases what was acquired since it was read", "TestAnOperatorsChanges/ADeletedAnalysisIsLostToItsRunAlsoIfItIsCreatedAgain/embedded",
		`Delete(ctx, firestore.LastUpdateTime(read))`,
		`Delete(ctx, func(time.Time) firestore.Precondition { return firestore.Exists }(read))`)}},
	{"repo/rooms.go", []bug{seed("a sweep deletes what was extended since it was read", "TestRooms/WhatIsNotKeptIsDeleted/embedded",
		`Delete(ctx, firestore.LastUpdateTime(read))`,
		`Delete(ctx, func(time.Time) firestore.Precondition { return firestore.Exists }(read))`)}},
	{"internal/doctor/live.go", []bug{
		seed("an alert of another deployment counts", "TestOnlyTheAlertsOfThisDeploymentAreCounted",
			`_(deliveries|`, `_(.*|deliveries|`),
		seed("a role on another database counts", "TestAnswersOfGoogleAreChecked/account-cannot-use-database#01",
			`database != condition && database != g.Resource`, `database != condition && database == ""`),
		seed("a condition that doctor cannot evaluate counts as none", "TestARightThatCannotBeEvaluatedIsNotChecked",
			`custom || several || condition != "" && database == condition`, `custom || several`),
		seed("a policy that is refused counts as empty", "TestARightThatCannotBeEvaluatedIsNotChecked",
			`errors.Join(err, errProject, unknown); !given`, `errors.Join(err, errProject, unknown); !given && unknown != nil`),
		seed("a task without a token counts as one with it", "TestAnswersOfGoogleAreChecked/task-audience#01",
			`if request.OidcToken != nil {`, `if request.OidcToken == nil {
			request.OidcToken = &cloudtasks.OidcToken{}
		}
		{`),
	}},
	{"internal/doctor/rules_other.go", []bug{
		seed("the queue leaves recovery no place", "TestEachSeededMisconfigurationIsFoundByItsRuleAndNoOther/as_many_dispatches_as_places", `n >= places`, `n > places`),
		seed("only the first kind's indexes are checked", "TestEachSeededMisconfigurationIsFoundByItsRuleAndNoOther",
			`	for i := range d.Kinds {
		needed`, `	for i := range d.Kinds[:1] {
		needed`),
		seed("only the first kind's large fields are checked", "TestEachSeededMisconfigurationIsFoundByItsRuleAndNoOther",
			`	for i := range d.Kinds {
		group`, `	for i := range d.Kinds[:1] {
		group`),
	}},
	{"internal/doctor/rules_worker.go", []bug{seed("a kind's path in the target's URL is not found", "TestEachSeededMisconfigurationIsFoundByItsRuleAndNoOther",
		`strings.HasSuffix(u.Path, k.Path) {`, `u.Path == k.Name {`)}},
	{"internal/doctor/google.go", []bug{seed("a TTL policy is read only with index settings", "TestATTLPolicyIsReadWithOrWithoutIndexSettings",
		`all.TTL[name] = f.TtlConfig`, `all.TTL[name] = !f.IndexConfig.UsesAncestorConfig && f.TtlConfig`), seed("only the first kind's indexes are read", "TestTheIndexesOfEachKindAreRead",
		`range r.facts.Kinds {`, `range r.facts.Kinds[:1] {`)}},
	{"cmd/internal/cli/kinds.go", []bug{
		seed("two kinds share a collection, which recovery books twice", "cmd/taskguard.TestWrongKindsAreRefusedByName", ` || k.Collection == other.Collection`, ``),
		seed("an unknown field of a kind is ignored", "cmd/taskguard.TestWrongKindsAreRefusedByName", `		d.DisallowUnknownFields()
`, ``),
	}},
	{"cmd/internal/cli/environment.go", []bug{seed("a kind is read with the words of analyses", "cmd/taskguard.TestEachCommandWorksOnTheKindThatItNames",
		`o.Emulator, o.Fields = p.Database, p.Collection, p.Emulator, p.Fields`, `o.Emulator = p.Database, p.Collection, p.Emulator`)}},
	{"cmd/internal/operate/client.go", []bug{seed("a kind's delivery goes to the analyses' handler", "cmd/taskguard.TestEachCommandWorksOnTheKindThatItNames",
		`, IDField: k.IDField, Path: k.Path}`, `}`)}},
	{"cmd/internal/operate/recover.go", []bug{seed("recover leaves the other kinds", "cmd/taskguard.TestRecoverBooksTheOrphanedDocumentsOfAllKinds",
		`range all {
		guard`, `range all[:1] {
		guard`)}},
	{"internal/console/server.go", []bug{seed("a page of a kind links to another kind's", "cmd/taskguard.TestTheConsoleHasAPageForEachKind",
		`return o.Root }`, `return "" }`)}},
	{"internal/doclock/session.go", []bug{seed("a cookie is believed without its signature", "TestAForgedCookieIsRefused",
		`end < 0 || !hmac.Equal([]byte(value[end+1:]), []byte(k.mac(value[:end])))`, `end < 0`)}},
	{"internal/doclock/lock.go", []bug{seed("another site's page takes a lock", "TestARequestOfAnotherSiteChangesNothing",
		`	if s.sites.Check(r) != nil {
		return q, errCrossSite
	}
`,
		``)}},
	{"internal/doclock/pusher.go", []bug{
		seed("a private channel's signature is not compared", "TestAPrivateChannelNeedsASession",
			`private && !hmac.Equal([]byte(auth), []byte(p.server.o.Pusher.sign(p.id, channel)))`, `private && auth == ""`),
		seed("a private channel needs no session", "TestAPrivateChannelNeedsASession", `	if caller.Owner == "" {
		return "", errNoSession
	}
`, `	_ = caller
`),
		seed("a socket subscribes to any number of channels", "TestSubscriptionsAreBounded", `len(p.channels) >= maxChannels`, `len(p.channels) < 0`),
	}},
	{"internal/doclock/socket.go", []bug{
		seed("an origin is compared by its prefix", "TestAnotherOriginIsServedOnlyIfItIsNamed",
			`slices.Contains(s.o.Origins, origins[0])`, `slices.ContainsFunc(s.o.Origins, func(o string) bool { return strings.HasPrefix(origins[0], o) })`),
		seed("a name is shown to anybody", "TestADisplayNameIsShownToThoseWithASession", `if named {`, `if named || true {`),
	}},
	{"internal/doclock/page.go", []bug{seed("an answer for another origin is readable", "TestAnotherOriginIsServedOnlyIfItIsNamed",
		`!slices.Contains(s.o.Origins, origin)`, `origin == ""`)}},
	{"internal/console/change.go", []bug{
		seed("a change leads to the page of another kind", "cmd/taskguard.TestTheConsoleHasAPageForEachKind", `s.o.Root+back+`, `back+`),
		seed("a requeue from the beginning keeps the checkpoint", "TestARequeueContinuesFromTheCheckpointUnlessTheOperatorChoosesTheBeginning",
			`			what = RequeueFresh
`,
			``),
		seed("a change is made in a state that was not confirmed", "TestAChangedAnalysisIsConfirmedAgain",
			`r.PostFormValue("lock") != s.row(&seen).Seen()`, `r.PostFormValue("lock") == ""`),
	}},
	{"internal/console/list.go", []bug{
		seed("the other pages repeat what runs", "TestTheFirstPageHasFirstThoseThatRunWaitOrAreStuck", `shown[r.ID] = true; p`, `shown[r.ID] = p.After == ""; p`),
	}},
	{"internal/console/failures.go", []bug{
		seed("a requeue takes more than was confirmed", "TestARequeueOfFailuresIsConfirmedWithItsNumberAndContinued", `int(min(cmp.Or(confirmed, maxBulk), maxBulk))`, `maxBulk`),
		seed("a requeue of failures needs no form of the console", "TestOnlyAConfirmedFormRequeuesFailures", `if foreign(r) {`, `if false {`),
		seed("a requeue of failures goes on during a stop", "TestARequeueOfFailuresEndsInTimeAndAtAStop", `	defer context.AfterFunc(s.work, cancel)()
`, ``),
	}},
	{"cmd/internal/operate/console.go", []bug{
		seed("a requeue takes what has failed since", "TestTheConsoleRequeuesOnlyTheFailuresThatWereConfirmed", `		is.Before = result.Before
`, ``),
	}},
	{"internal/console/row.go", []bug{
		seed("an attempt that lost its lock is shown as running", "TestAnAnalysisHasItsProgressAndATimelineOfItsAttempts",
			`case r.LockState == lockHeld && a.Token == r.Lock.Token:`, `case a.Token == r.Lock.Token:`),
		seed("a finished analysis can be cancelled", "TestAConfirmationPageDescribesTheConsequences",
			` && !r.Lock.Finished
}`,
			`
}`),
	}},
	{"lease/projectlock/acquire.go", []bug{
		seed("the file is taken although the remote lease was seen held", "TestNoFallbackAfterTheRemoteLeaseWasSeenHeld",
			` && !h.denied`, ``),
		seed("an aborted acquisition leaves its lease behind", "TestAnAbortDuringAcquireLeavesNothingBehind",
			`		l.removeRecords(h)
		l.step(h, Idle)`,
			`		l.step(h, Idle)`),
		seed("the remote lease is taken although another on this machine has the file", "TestTheRemoteLeaseIsReleasedIfAnotherHoldsTheFile",
			`err == nil && h.strategy == WebLock`, `err == nil && h.strategy == WebLock && l.stores == nil`),
	}},
	{"lease/projectlock/locker.go", []bug{seed("a lost lease's end removes another's file", "TestAStaleLeasesFileIsRemovedOnlyIfItIsOurs",
		`ours := c.Exists && c.Doc.Owner == owner`, `ours := c.Exists`)}},
	{"lease/projectlock/file.go", []bug{seed("an unreadable lock file is free", "TestAnUnreadableFileIsHeldForOneTTL",
		`lease.AssumedExpiry(modified, modified, lease.Policy{TTL: FileLockTTL})`, `modified`)}},
	{"lease/operatorpool/pool.go", []bug{seed("an operator is assigned to two", "TestTheCurrentOperatorIsKeptUntilTheTargetIsFree",
		`case v.busy[id]:`, `case v.busy[id] && v.own == "":`)}},
	{"lease/operatorpool/storage.go", []bug{seed("a dead process keeps its operator", "TestTheReservationOfADeadProcessIsDropped",
		` && (session == s.session || s.alive(session))`, ``)}},
	{"lease/analysislock/history.go", []bug{seed("an attempt is shown with its token", "cmd/taskguard.TestStatusShowsProgressAndTheAttempts",
		`json:"-"`, `json:"token"`)}},
	{"cmd/internal/operate/submit.go", []bug{seed("a run that reports messages only floods the terminal", "cmd/internal/operate.TestWaitingShowsMessagesWithoutAFractionAtMostEveryHalfMinute",
		` && time.Since(s.at) >= messagePause`, ``)}},
	{"cmd/internal/operate/bulk.go", []bug{
		seed("a requeue of failures does not compare with what was listed", "TestTheConsoleRequeuesOnlyTheFailuresThatWereConfirmed",
			`if b.running {`, `if true {`),
		seed("a bulk change does not compare with what was listed", "cmd/internal/operate.TestAnAnalysisThatHasChangedSinceItWasListedIsSkipped",
			`if b.running {`, `if true {`),
		seed("a bulk cancel ends what is held", "cmd/internal/operate.TestAnAnalysisThatHasChangedSinceItWasListedIsSkipped", `case lease.Held(d.Lock, d.ReadAt) && !b.running:`, `case false:`),
		seed("a bulk requeue by time runs READY ones again", "cmd/internal/operate.TestAnAnalysisThatHasChangedSinceItWasListedIsSkipped", `b.status != analysislock.Ready:`, `false:`),
		seed("a bulk requeue goes on without a queue", "cmd/taskguard.TestABulkRequeueStopsWhereTheQueueRefusesAndQUEUEDAreBookedByTheirStatus", `code == codes.NotFound || code`, `code`),
		seed("a bulk requeue books a second delivery", "cmd/taskguard.TestABulkRequeueChangesOnlyWhatIsStillAsItWasListed", `what != console.Cancel && reset:`, `what != console.Cancel && false && reset:`),
		seed("a dry run changes", "cmd/taskguard.TestABulkRequeueChangesOnlyWhatIsStillAsItWasListed", `case b.dryRun:`, `case false:`),
		seed("Ctrl-C ends a bulk change between commit and booking", "cmd/taskguard.TestAnInterruptedBulkRequeueChangesNoneTwiceWhenItIsRunAgain",
			`uninterrupted := context.WithoutCancel(ctx)`, `uninterrupted := ctx`),
		seed("a bulk change ignores the rate", "cmd/internal/operate.TestChangesKeepToTheRateAndToSixteenAtATime", `b.rate > 0 && !b.dryRun`, `false`),
	}},
	{"repo/filter.go", []bug{
		seed("a list of all ends with its first page", "TestFindMayTakeLongerThanAnyOfItsQueries", `all = append(all, found...); next == ""`, `all = append(all, found...); len(all) > 0`),
		seed("a filter does not look at an offset", "TestFindComparesEachTypeOfUpdatedAt", `(d.UpdatedAt.Before(f.Since) || !f.Before.IsZero() && !d.UpdatedAt.Before(f.Before))`, `false`),
		seed("a page begins after all analyses with the same updatedAt", "TestThePagesHaveEachAnalysisOnce", `return q.StartAfter(*at.Text, at.ID), nil`, `return q.StartAfter(*at.Text), nil`),
		seed("a page begins with analyses that the one before had", "TestThePagesHaveEachAnalysisOnce", `return q.StartAfter(*at.Time, at.ID), nil`, `return q.StartAt(*at.Time), nil`),
		seed("a filter ignores the error of the last attempt", "cmd/taskguard.TestStatusListsAllThatAFilterSelects", `, is("lastError.code", "==", f.Code)`, ``),
	}},
	{"cmd/internal/operate/unlock.go", []bug{
		seed("requeue --fresh keeps the checkpoint", "cmd/taskguard.TestRequeueKeepsTheCheckpointUnlessFresh",
			`	if *fresh {`, `	if *fresh && len(ids) > 1 {`),
		seed("the first refused id ends the command", "cmd/taskguard.TestAChangeOfSeveralAnalysesPassesOverThoseThatAreRefused",
			`if ctx.Err() != nil || len(ids) == 1 {`, `if ctx.Err() != nil || len(ids) == 1 || err != nil {`),
		seed("a cancel needs the queue", "cmd/taskguard.TestCancelEndsAnAnalysisAndBooksNoDelivery",
			`if what == console.Cancel || what == remove {`, `if what == console.Unlock {`),
	}},
}
