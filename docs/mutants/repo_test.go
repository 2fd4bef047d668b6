package mutants

var repoRooms = []room{
	{"repo/transaction.go", []bug{
		{
			name: "trust in a commit is measured from its reply",
			old: `	asked := time.Now()
	written, err := s.collection.Doc(id).Update(ctx, updates, firestore.LastUpdateTime(read))
`,
			new: `	written, err := s.collection.Doc(id).Update(ctx, updates, firestore.LastUpdateTime(read))
	asked := time.Now()
`,
			test: "TestTrustIsCountedFromTheStartOfTheCall/heartbeat/a_commit",
		},
		{
			name: "a commit holds whatever others have written since the reading",
			old:  `Update(ctx, updates, firestore.LastUpdateTime(read))`,
			new:  `Update(ctx, updates)`,
			test: "TestStoreOnEmbedded/Store/SwapOfAStaleCellIsAConflictAndChangesNothing",
		},
	}},
	{"lease/analysislock/analysis.go", []bug{{
		name: "a release leaves the status PROCESSING",
		old: `	if d.Status == Processing {
		d.Status = Queued
	}
`,
		pkg:  "repo",
		test: "TestAnalysisLock/ItsOwnersReleaseDeletesTheLockAndQueues/embedded",
	}}},
	{"repo/codec.go", []bug{
		{
			name: "an unreadable expiry counts as expired",
			old:  `l.ExpiresAt = lease.Presume(l.HeartbeatAt, r.updated, c.policy)`,
			new:  `l.ExpiresAt = time.Time{}`,
			test: "TestLockFields/unreadable,_updated_now",
		},
		{
			name: "a heartbeat does not write updatedAt",
			old:  `set("updatedAt", !was.updatedAsTimestamp, `,
			new:  `set("updatedAt", prev.Status != next.Status, `,
			test: "TestAHeartbeatIsAnUpdate/embedded",
		},
		{
			name: "an expiry in the year 9999 is believed",
			old:  `ok && lease.Credible(t, r.at)`,
			new:  `ok`,
			test: "TestLockFields/year_9999,_heartbeat_old",
		},
		{
			name: "an updatedAt that is a Timestamp becomes a string",
			old:  `updatedAsTimestamp: timestamp, `,
			new:  `updatedAsTimestamp: timestamp && false, `,
			test: "TestUpdatedAtKeepsItsType/embedded",
		},
		{
			name: "a decision reads the whole document",
			old:  `func (analysisCodec) mask() []string { return decision }`,
			new:  `func (analysisCodec) mask() []string { return nil }`,
			test: "TestNoDecisionMovesTheInput/embedded",
		},
	}},
	{"lease/analysislock/analysislock.go", []bug{
		{
			name: "an author's status becomes PROCESSING",
			old:  `	if d.Status == "" || d.Status == Queued {`,
			new:  `	if !d.Lock.Finished {`,
			pkg:  "repo",
			test: "TestAStatusOfAnotherProgramIsKeptUntilTheFinish/a_word",
		},
	}},
	{"repo/orphaned.go", []bug{
		{
			name: "recovery books what is held",
			old:  `lease.Orphaned(d.Lock, d.ReadAt)`,
			new:  `!d.Lock.Finished`,
			test: "TestOrphanedFindsAnalysesThatAreNotHeldAndWereNotUpdatedForATTL/embedded",
		},
		{
			name: "recovery asks for what is old by the local clock",
			old:  `cutoff := now.Add(`,
			new:  `_, cutoff := now, time.Now().Add(`,
			test: "TestAWorkersClockDoesNotDecideWhatIsOrphaned/slow",
		},
		{
			name: "recovery judges a lock by the local clock",
			old:  `lease.Orphaned(d.Lock, d.ReadAt)`,
			new:  `lease.Orphaned(d.Lock, time.Now())`,
			test: "TestAWorkersClockDoesNotDecideWhatIsOrphaned/fast",
		},
	}},
}
