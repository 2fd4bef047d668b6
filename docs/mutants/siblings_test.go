package mutants

var siblingRooms = []room{
	{"lease/rules.go", []bug{{
		name: "a new record's token does not come of the time",
		old:  `return Lease{Token: now.UnixMicro() - 1}`,
		new:  `return Lease{}`,
		pkg:  "lease/documentlock",
		test: "TestLocks/TokensGrowOverDeletion",
	}}},
	{"lease/documentlock/documentlock.go", []bug{
		{
			name: "an expired lock is extended",
			old: `	case !lease.Held(c.Doc.Lease, c.At):
		return ErrNotLocked
	case c.Doc.Owner`,
			new:  `	case c.Doc.Owner`,
			test: "TestLocks/AHeartbeatOfAnExpiredLockFindsNone",
		},
		{
			name: "another's lock is released",
			old: `	case c.Doc.Owner != owner:
		return ErrNotYours
`,
			test: "TestLocks/AReleaseByAnotherLeavesTheLock",
		},
		{
			name: "a token is lower than one of a record that was deleted meanwhile",
			old:  `next.Token = max(next.Token, lease.Fresh(c.At).Token)`,
			new:  `_ = c.At`,
			test: "TestATokenIsLargerThanThatOfARecordMadeAndDeletedMeanwhile",
		},
		{
			name: "a save is confirmed under any token",
			old:  `s.Mine && c.Doc.Token != token`,
			new:  `s.Mine && token == 0`,
			test: "TestLocks/ASaveIsConfirmedOnlyForTheHolderUnderItsToken",
		},
	}},
	{"lease/documentlock/sweep.go", []bug{{
		name: "a sweep deletes a live lock",
		old:  `!c.Exists || lease.Held(c.Doc.Lease, c.At)`,
		new:  `!c.Exists`,
		test: "TestASweepNeverDeletesALiveLock",
	}}},
	{"lease/documentlock/feed.go", []bug{
		{
			name: "an older event is reported after a newer one",
			old:  `r.loaded && !c.At.After(r.cell.At)`,
			new:  `r.loaded && c.At.Equal(r.cell.At)`,
			test: "TestEventsAreOrderedIfChangesAreNot",
		},
		{
			name: "an expiry is reported by the sweep alone",
			old:  `due := c.Asked.Add(`,
			new:  `due := c.Asked.Add(time.Hour + `,
			test: "TestFeed/Run/SubscribingWhileTheStreamIsDownGivesTheCurrentStateAndExpiries",
		},
	}},
	{"repo/rooms.go", []bug{{
		name: "a sweep deletes what was extended since it was read",
		old:  `Delete(ctx, firestore.LastUpdateTime(read))`,
		new:  `Delete(ctx, func(time.Time) firestore.Precondition { return firestore.Exists }(read))`,
		test: "TestRooms/WhatIsNotKeptIsDeleted/embedded",
	}}},
	{"worker/doclock/session.go", []bug{{
		name: "a cookie is believed without its signature",
		old:  `end < 0 || !hmac.Equal([]byte(value[end+1:]), []byte(k.mac(value[:end])))`,
		new:  `end < 0`,
		test: "TestAForgedCookieIsRefused",
	}}},
	{"worker/doclock/lock.go", []bug{{
		name: "another site's page takes a lock",
		old: `	if s.sites.Check(r) != nil {
		return q, errCrossSite
	}
`,
		test: "TestARequestOfAnotherSiteChangesNothing",
	}}},
	{"lease/projectlock/acquire.go", []bug{
		{
			name: "the file is taken although the remote lease was seen held",
			old:  ` && !h.denied`,
			test: "TestNoFallbackAfterTheRemoteLeaseWasSeenHeld",
		},
		{
			name: "an aborted acquisition leaves its lease behind",
			old: `		l.removeRecords(h)
		l.step(h, Idle)`,
			new:  `		l.step(h, Idle)`,
			test: "TestAnAbortDuringAcquireLeavesNothingBehind",
		},
		{
			name: "the remote lease is taken although another on this machine has the file",
			old:  `err == nil && h.strategy == WebLock`,
			new:  `err == nil && h.strategy == WebLock && l.stores == nil`,
			test: "TestTheRemoteLeaseIsReleasedIfAnotherHoldsTheFile",
		},
	}},
	{"lease/projectlock/locker.go", []bug{{
		name: "a lost lease's end removes another's file",
		old:  `ours := c.Exists && c.Doc.Owner == owner`,
		new:  `ours := c.Exists`,
		test: "TestAStaleLeasesFileIsRemovedOnlyIfItIsOurs",
	}}},
	{"lease/projectlock/file.go", []bug{{
		name: "an unreadable lock file is free",
		old:  `lease.Presume(modified, modified, lease.Policy{TTL: FileLockTTL})`,
		new:  `modified`,
		test: "TestAnUnreadableFileIsHeldForOneTTL",
	}}},
	{"lease/operatorpool/pool.go", []bug{{
		name: "an operator is assigned to two",
		old:  `case v.busy[id]:`,
		new:  `case v.busy[id] && v.own == "":`,
		test: "TestTheCurrentOperatorIsKeptUntilTheTargetIsFree",
	}}},
	{"lease/operatorpool/storage.go", []bug{{
		name: "a dead process keeps its operator",
		old:  ` && (session == s.session || s.alive(session))`,
		test: "TestTheReservationOfADeadProcessIsDropped",
	}}},
}
