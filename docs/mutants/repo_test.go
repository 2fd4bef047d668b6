package mutants

var repoRooms = []room{
	{"repo/fence/fence.go", []bug{
		seed("a stale token passes a fence", "TestAStaleTokenThatArrivesAfterANewerOneIsRefused/embedded",
			`if token < s.Token {`, `if token < 0 {`),
		seed("a fence refuses the same token again", "TestAStaleTokenThatArrivesAfterANewerOneIsRefused/embedded",
			`if token < s.Token {`, `if token <= s.Token {`),
		seed("a fence forgets a token that is accepted", "TestAStaleTokenThatArrivesAfterANewerOneIsRefused/embedded",
			`if token > s.Token || `, `if `),
		seed("a fence is read outside the commit that it guards", "TestOfTwoRacingWritesTheNewerRemains/embedded",
			`snap, err := tx.Get(doc)`, `snap, err := doc.Get(ctx)`),
		seed("a fence in use expires", "TestAFenceIsKeptForHalfOfKeepAfterEachAcceptedTokenOrLonger",
			` || s.RemoveAt.Before(now.Add(keep/2))`, ` || now.Add(keep).IsZero()`),
		seed("a request passes an unreachable fence", "TestEachRequestIsAnsweredAfterOneTransaction",
			`case err == nil:`, `case err == nil, !errors.Is(err, ErrStale) && !errors.Is(err, errToken):`),
	}},
	{"repo/transaction.go", []bug{
		seed("trust in a commit is measured from its reply", "TestTrustIsCountedFromTheStartOfTheCall/heartbeat/a_commit",
			`	asked := time.Now()
	written, err := s.collection.Doc(id).Update(ctx, updates, firestore.LastUpdateTime(read))
`,
			`	written, err := s.collection.Doc(id).Update(ctx, updates, firestore.LastUpdateTime(read))
	asked := time.Now()
`),
		seed("a commit holds whatever others have written since the reading", "TestStoreOnEmbedded/Store/SwapOfAStaleCellIsAConflictAndChangesNothing",
			`Update(ctx, updates, firestore.LastUpdateTime(read))`, `Update(ctx, updates)`),
	}},
	{"lease/analysislock/analysis.go", []bug{seed("a release leaves the status PROCESSING", "repo.TestAnalysisLock/ItsOwnersReleaseDeletesTheLockAndQueues/embedded",
		`	if d.Status == Processing {
		d.Status = Queued
	}
`,
		``)}},
	{"repo/listing.go", []bug{seed("the oldest of the types is the newest", "TestTheOldestUnfinishedAnalysisIsFoundForEachTypeOfCreatedAt/embedded",
		`d.CreatedAt.Before(oldest.CreatedAt)`, `oldest.CreatedAt.Before(d.CreatedAt)`)}},
	{"repo/codec.go", []bug{
		seed("an unreadable expiry counts as expired", "TestLockFields/unreadable,_updated_now",
			`l.ExpiresAt = lease.AssumedExpiry(l.HeartbeatAt, r.updated, c.policy)`, `l.ExpiresAt = time.Time{}`),
		seed("a heartbeat does not write updatedAt", "TestAHeartbeatIsAnUpdate/embedded",
			`set("updatedAt", !was.updatedAsTimestamp, `, `set("updatedAt", prev.Status != next.Status, `),
		seed("an expiry in the year 9999 is believed", "TestLockFields/year_9999,_heartbeat_old",
			`ok && lease.Credible(t, r.at)`, `ok`),
		seed("an updatedAt that is a Timestamp becomes a string", "TestUpdatedAtKeepsItsType/embedded",
			`updatedAsTimestamp: timestamp, `, `updatedAsTimestamp: timestamp && false, `),
		seed("a decision reads the whole document", "TestNoDecisionMovesTheInput/embedded",
			`func (c analysisCodec) mask() []string { return c.fields.decision() }`,
			`func (c analysisCodec) mask() []string { return nil }`),
		seed("a document that is opened again is deleted when it would have been", "TestTheTimeToDeleteIsSetByTheFinish",
			`!expires && !finished && (finishedChanged || p.Token != n.Token)`, `false`),
	}},
	{"repo/fields.go", []bug{
		seed("a word of another vocabulary finishes a document", "TestStatusesAreTranslatedBothWays",
			`		return "(" + word + ")"`, `		return word`),
	}},
	{"lease/analysislock/analysislock.go", []bug{
		seed("an author's status becomes PROCESSING", "repo.TestAStatusOfAnotherProgramIsKeptUntilTheFinish/a_word",
			`	if d.Status == "" || d.Status == Queued {`, `	if !d.Lock.Finished {`),
	}},
	{"lease/analysislock/hold.go", []bug{
		seed("a finish leaves the checkpoint", "repo.TestTheNextAttemptIsGivenTheNewestCheckpointUntilReadyOrFresh/embedded",
			`d.Progress, d.Checkpoint, d.NextAttemptAt = nil, &Checkpoint{}, time.Time{}`, `d.Progress, d.NextAttemptAt = nil, time.Time{}`),
	}},
	{"lease/analysislock/operator.go", []bug{
		seed("an analysis is marked that another call has marked", "repo.TestAMarkIsMadeOnceAndOnlyOfAnOrphan/marked_by_another_call/embedded",
			` || !d.NextAttemptAt.Equal(was.NextAttemptAt)`, ``),
		seed("an analysis is marked whose holder has renewed the lock", "repo.TestAMarkIsMadeOnceAndOnlyOfAnOrphan/its_holder_has_renewed_the_lock/embedded",
			` || !lease.Orphaned(d.Lock, c.At)`, ``),
		seed("a fresh start of an open analysis is taken for done", "TestAFreshStartOfAnOpenAnalysisIsMadeAgainAfterAConflict",
			`opened(is) && !opened(was)`, `opened(is)`),
		seed("a fresh start goes on from the checkpoint", "repo.TestTheNextAttemptIsGivenTheNewestCheckpointUntilReadyOrFresh/embedded",
			`if fresh || d.Status == Ready {`, `if d.Status == Ready {`),
	}},
	{"lease/analysislock/report.go", []bug{
		seed("a progress is dropped with the checkpoint that does not fit", "repo.TestACheckpointThatTheDocumentCannotHoldIsDroppedAndTheLockRenewed/embedded",
			`	}, without)`, `	})`),
		seed("any checkpoint advances a run", "TestARunAdvancesByACheckpointThatDiffersFromTheOneItWasGiven/the_same",
			`given, _ := json.Marshal(h.given)`, `given := []byte(nil)`),
		seed("a report during a commit is answered by that commit", "TestReportsAreMergedPartByPartAndAnsweredByTheirCommit",
			`	n = max(0, n-h.settled)`, `	n = len(h.waiting)`),
		seed("a run advances by a checkpoint that was refused", "TestAReportThatWaitsIsAnswered/refused_during_the_run",
			`if err == nil && checkpoint != nil {`, `if checkpoint != nil {`),
	}},
	{"repo/analyses.go", []bug{
		seed("the tokens of a record that was deleted begin again", "TestARecordKeepsItsResultForATime/embedded",
			`lease.Fresh(read).Token`, `int64(0)`),
		seed("the Close of one kind ends the connection of all", "TestOneConnectionServesSeveralCollections",
			`	if !a.ownsClient {`, `	if a == nil {`),
		seed("the checkpoint is read before the acquisition is decided", "TestAnAttemptIsGivenTheCheckpointOfTheHolderBeforeIt",
			`	docs.beforeCommit = a.requestWork
`,
			`	var first *request
	docs.beforeCommit = func(ctx context.Context, prev analysislock.Analysis, next *analysislock.Analysis) func() {
		cancel := a.requestWork(ctx, prev, next)
		if s, ok := next.Stored.(stored); ok && s.input != nil {
			if first == nil {
				first, cancel = s.input, func() {}
			}
			s.input = first
			next.Stored = s
		}
		return cancel
	}
`),
	}},
	{"repo/orphaned.go", []bug{
		seed("recovery knows the words of analyses alone", "internal/delivery.TestRecoveryBooksOrphanedAnalyses",
			`[]string{f.Queued, f.Processing}`, `[]string{analysislock.Queued, analysislock.Processing}`),
		seed("recovery books what is held", "TestOrphanedFindsAnalysesThatAreNotHeldAndWereNotUpdatedForATTL/embedded",
			`lease.Orphaned(d.Lock, d.ReadAt)`, `!d.Lock.Finished`),
		seed("recovery asks for what is old by the local clock", "TestAWorkersClockDoesNotDecideWhatIsOrphaned/slow",
			`now.Add(-a.TTL()), min(`, `time.Now().Add(-a.TTL()), min(`),
		seed("recovery takes an analysis that waits for its next attempt", "TestAnalysesThatWaitHideNoOrphan/embedded",
			` && lease.Late(d.NextAttemptAt, d.ReadAt, a.TTL())`, ``),
		seed("recovery reads one page", "TestAnalysesThatWaitHideNoOrphan/embedded",
			`enough || read < size`, `enough || true`),
		seed("a query of recovery that fails hides what the others find", "TestAQueryThatTakesTooLongHidesNobodyFromTheOthers",
			`if len(due) == limit {`, `if len(due) == limit || failed != nil {
			due = nil`),
		seed("recovery judges a lock by the local clock", "TestAWorkersClockDoesNotDecideWhatIsOrphaned/fast",
			`lease.Orphaned(d.Lock, d.ReadAt)`, `lease.Orphaned(d.Lock, time.Now())`),
	}},
}
