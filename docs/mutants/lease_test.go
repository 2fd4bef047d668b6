package mutants

const suiteOnMemory = "TestMemoryPassesTheSuite/Lease/"

var leaseRooms = []room{
	{"lease/lease.go", []bug{
		{
			name: "the owner is not compared",
			old:  `l.Owner != "" && l.Grant() == g`,
			new:  `l.Owner != "" && l.Token == g.Token`,
			test: "TestExtendAndFinishAreForTheHolderAlone/another_owner",
		},
		{
			name: "the token is not compared",
			old:  `l.Owner != "" && l.Grant() == g`,
			new:  `l.Owner != "" && l.Owner == g.Owner`,
			test: "TestExtendAndFinishAreForTheHolderAlone/another's_token",
		},
	}},
	{"lease/rules.go", []bug{
		{
			name: "a release resets the token",
			old: `		l.Attempts--
	}
	return freed(l)`,
			new: `		l.Attempts--
	}
	l.Token = 0
	return freed(l)`,
			test: "TestDrop/ours",
		},
		{
			name: "a finished record is taken again",
			old: `	case l.Finished:
		return l, ErrFinished
`,
			test: "TestTake/finished_comes_before_held",
		},
		{
			name: "a lease is still held at the instant of its expiry",
			old:  `now.Before(l.ExpiresAt)`,
			new:  `!now.After(l.ExpiresAt)`,
			test: "TestTake/one_that_expires_now_is_expired",
		},
		{
			name: "attempts are not counted",
			old: `	l.Attempts++
`,
			test: "TestTake/a_freed_one",
		},
		{
			name: "the refusal of one attempt too many keeps the token",
			old: `		l.Token++
		return finished`,
			new:  `		return finished`,
			test: "TestTake/exhausted_comes_before_taking",
		},
		{
			name: "a heartbeat renews whoever's lease it finds",
			old: `	if err := loss(l, g); err != nil {
		return l, err
	}
	l.HeartbeatAt`,
			new:  `	l.HeartbeatAt`,
			pkg:  "worker",
			test: "TestDelivery/TheOwnerIsRewrittenMidRun",
		},
		{
			name: "a finish is written whoever holds the lease",
			old: `	if err := loss(l, g); err != nil {
		return l, err
	}
	return finished`,
			new:  `	return finished`,
			test: "TestAFinishAfterTrustHasEndedIsFenced/another_took_over",
		},
		{
			name: "simulated: a finish is written whoever holds the lease",
			old: `	if err := loss(l, g); err != nil {
		return l, err
	}
	return finished`,
			new:  `	return finished`,
			pkg:  "worker/proof",
			test: manySeeds,
		},
	}},
	{"lease/lessor.go", []bug{
		{
			name: "expiry is judged by the local clock",
			old:  `Take(*l.of(&c.Doc), c.At, `,
			new:  `Take(*l.of(&c.Doc), time.Now(), `,
			test: "TestTheStoresClockMayBeSetToAnything",
		},
		{
			name: "expiry is judged when the reading has arrived",
			old:  `Take(*l.of(&c.Doc), c.At, `,
			new:  `Take(*l.of(&c.Doc), c.Now(), `,
			pkg:  "repo",
			test: "TestExpiryIsJudgedAtTheTimeOfTheReading/expired_while_the_reply_travelled",
		},
		{
			name: "an acquisition whose reply was lost does not know its own token",
			old:  `got.HeldBy(Grant{Owner: owner, Token: got.Token}) || got.Finished`,
			new:  `got.Finished`,
			test: "TestAnUnknownOutcomeIsResolved/acquire:_the_reply_was_lost_after_the_commit",
		},
		{
			name: "explored: an acquisition whose reply was lost does not know its own token",
			old:  `got.HeldBy(Grant{Owner: owner, Token: got.Token}) || got.Finished`,
			new:  `got.Finished`,
			pkg:  "worker/proof",
			test: everyInterleaving,
		},
		{
			name: "simulated: expiry is judged by the local clock",
			old:  `Take(*l.of(&c.Doc), c.At, `,
			new:  `Take(*l.of(&c.Doc), time.Now(), `,
			pkg:  "worker/proof",
			test: manySeeds,
		},
		{
			name: "a record that was given up, opened and taken by another counts as acquired",
			old:  `got.Finished && got.FinishedBy == owner`,
			new:  `got.FinishedBy == owner`,
			test: "TestALostReplyToAnAcquisitionIsResolvedFromTheRecord/exhausted,_reopened_and_acquired_by_another",
		},
		{
			name: "an owner that has given up acquires what was reopened",
			old:  `case l.of(&c.Doc).FinishedBy == owner:`,
			new:  `case false:`,
			test: "TestALostReplyToAnAcquisitionIsResolvedFromTheRecord/exhausted_and_reopened",
		},
		{
			name: "any owner's release clears the lock",
			old:  `case owner == "" || !got.HeldBy(Grant{Owner: owner, Token: got.Token}):`,
			new:  `case owner == "":`,
			pkg:  "repo",
			test: "TestAnalysisLock/AnotherOwnersReleaseLeavesTheLock/embedded",
		},
		{
			name: "Resume has no time limit",
			old: `(*Hold[D], error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)`,
			new: `(*Hold[D], error) {
	ctx, cancel := context.WithCancel(ctx)`,
			test: "TestAnOperationOnAnUnavailableStoreGivesUpInItsTime/resume",
		},
	}},
	{"lease/hold.go", []bug{
		{
			name: "a release at a stop has 2 s, whatever is left",
			old:  `; ok && deadline.After(until) {`,
			new:  `; ok && deadline.Before(time.Time{}) {`,
			test: "TestAnOperationOnAnUnavailableStoreGivesUpInItsTime/release_with_a_later_deadline",
		},
		{
			name: "trust is measured from the end of the call",
			old:  `c.At, c.Asked, p)`,
			new:  `c.At, time.Now(), p)`,
			test: "TestASlowHeartbeatDoesNotExtendTrust",
		},
		{
			name: "the lease is let go before the run has ended",
			old:  `			err = body(ctx)`,
			new: `			ended := make(chan error, 1)
			go func() { ended <- body(ctx) }()
			select {
			case err = <-ended:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}`,
			test: "TestTheEndOfTheCallersContextEndsTheBodysAndNoHeartbeat",
		},
		{
			name: "a release frees whatever it finds",
			old: `		if err := loss(l, h.grant); err != nil {
			return l, err
		}
		return Drop(l, h.grant, refund), nil
	}, set, func(l Lease) bool { return l.Owner != h.grant.Owner })`,
			new: `		return freed(l), nil
	}, set, func(Lease) bool { return false })`,
			pkg:  "lease/leasetest",
			test: suiteOnMemory + "ALockRewrittenMidRunCancelsTheRunAndStaysIntact",
		},
	}},
	{"lease/keep.go", []bug{
		{
			name: "a run is not cancelled when its lock is lost",
			old: `		k.cancelBody(k.lost)
`,
			test: "TestALossHasAReason/taken",
		},
		{
			name: "nothing watches for the end of trust",
			old: `	k.done.Go(func() { k.watch(ctx) })
`,
			test: "TestTheWatchdogNeedsNoStore/unavailable",
		},
		{
			name: "a lost lock is asked for again as long as the run lasts",
			old: `		k.end()
	}
`,
			new: `	}
`,
			test: "TestALossIsReportedOnceAndTheStoreIsNotCalledAgain",
		},
		{
			name: "a lock that was lost to time is renewed by a run that ignores its cancellation",
			old: `		k.end()
	}
`,
			new: `	}
`,
			and:  []string{`context.WithDeadline(ctx, k.hold.TrustedUntil())`, `context.WithCancel(ctx)`},
			test: "TestALeaseThatWasNotRenewedInTimeStaysLost",
		},
		{
			name: "a renewal that failed is tried again after a whole heartbeat",
			old:  `k.hold.lessor.policy.Heartbeat / 10`,
			new:  `k.hold.lessor.policy.Heartbeat`,
			test: "TestARenewalThatFailsIsTriedAgainAfterATenthOfAHeartbeat",
		},
		{
			name: "explored: nothing watches for the end of trust",
			old: `	k.done.Go(func() { k.watch(ctx) })
`,
			pkg:  "worker/proof",
			test: everyInterleaving,
		},
	}},
	{"lease/store.go", []bug{
		{
			name: "a conflict is taken for a loss",
			old:  `		e.conflicts++`,
			new:  `		return true, &LostError{Reason: Taken}`,
			test: "TestAConflictDoesNotLoseTheLease",
		},
		{
			name: "a finish that the store has refused is tried again",
			old: `		if e.refused != nil {
			return true, e.refused
		}
`,
			test: "TestAnUnknownOutcomeIsResolved/finish:_it_was_refused",
		},
		{
			name: "a failed write is taken for a success",
			old:  `	if err == nil {`,
			new:  `	if err == nil || !errors.Is(err, ErrConflict) && !errors.Is(err, ErrRefused) {`,
			test: "TestAnUnknownOutcomeIsResolved/finish:_it_was_lost_before_the_commit",
		},
	}},
}
