package mutants

const suiteOnMemory = "lease/leasetest.TestMemoryPassesTheSuite/Lease/"

var leaseRooms = []room{
	{"lease/lease.go", []bug{
		seed("the owner is not compared", "TestExtendAndFinishAreForTheHolderAlone/another_owner",
			`l.Owner != "" && l.Grant() == g`, `l.Owner != "" && l.Token == g.Token`),
		seed("the token is not compared", "TestExtendAndFinishAreForTheHolderAlone/another's_token",
			`l.Owner != "" && l.Grant() == g`, `l.Owner != "" && l.Owner == g.Owner`),
	}},
	{"lease/rules.go", []bug{
		seed("a release resets the token", "TestDrop/ours",
			`		l.Attempts--
	}
	return freed(l)`,
			`		l.Attempts--
	}
	l.Token = 0
	return freed(l)`),
		seed("a finished record is taken again", "TestTake/finished_comes_before_held",
			`	case l.Finished:
		return l, ErrFinished
`,
			``),
		seed("a lease is still held at the instant of its expiry", "TestTake/one_that_expires_now_is_expired",
			`now.Before(l.ExpiresAt)`, `!now.After(l.ExpiresAt)`),
		seed("attempts are not counted", "TestTake/a_freed_one",
			`	l.Attempts++
`,
			``),
		seed("the refusal of one attempt too many keeps the token", "TestTake/exhausted_comes_before_taking",
			`		l.Token++
		return finished`,
			`		return finished`),
		seed("a heartbeat renews whoever's lease it finds", "TestExtendAndFinishAreForTheHolderAlone/another_owner",
			`	if err := loss(l, g); err != nil {
		return l, err
	}
	was :=`,
			`	was :=`),
		seed("a cancel keeps the token of the run that it ends", "lease/analysislock.TestCancel/held",
			`	l.Token++
	return finished(l, by), nil`,
			`	return finished(l, by), nil`),
		seed("a finish is written whoever holds the lease", "TestAFinishAfterTrustHasEndedIsFenced/another_took_over",
			`	if err := loss(l, g); err != nil {
		return l, err
	}
	return finished`,
			`	return finished`),
		seed("simulated: a finish is written whoever holds the lease", manySeeds,
			`	if err := loss(l, g); err != nil {
		return l, err
	}
	return finished`,
			`	return finished`),
	}},
	{"lease/lessor.go", []bug{
		seed("expiry is judged by the local clock", "TestTheStoresClockMayBeSetToAnything",
			`Take(*l.of(&c.Doc), c.At, `, `Take(*l.of(&c.Doc), time.Now(), `),
		seed("expiry is judged when the reading has arrived", "repo.TestExpiryIsJudgedAtTheTimeOfTheReading/expired_while_the_reply_travelled",
			`Take(*l.of(&c.Doc), c.At, `, `Take(*l.of(&c.Doc), c.Now(), `),
		seed("an acquisition whose reply was lost does not know its own token", "TestAnUnknownOutcomeIsResolved/acquire:_the_reply_was_lost_after_the_commit",
			`got.HeldBy(Grant{Owner: owner, Token: got.Token}) || got.Finished`, `got.Finished`),
		seed("explored: an acquisition whose reply was lost does not know its own token", everyInterleaving,
			`got.HeldBy(Grant{Owner: owner, Token: got.Token}) || got.Finished`, `got.Finished`),
		seed("simulated: expiry is judged by the local clock", manySeeds,
			`Take(*l.of(&c.Doc), c.At, `, `Take(*l.of(&c.Doc), time.Now(), `),
		seed("a record that was given up, opened and taken by another counts as acquired", "TestALostReplyToAnAcquisitionIsResolvedFromTheRecord/exhausted,_reopened_and_acquired_by_another",
			`got.Finished && got.FinishedBy == owner`, `got.FinishedBy == owner`),
		seed("an owner that has given up acquires what was reopened", "TestALostReplyToAnAcquisitionIsResolvedFromTheRecord/exhausted_and_reopened",
			`case l.of(&c.Doc).FinishedBy == owner:`, `case false:`),
		seed("any owner's release clears the lock", "repo.TestAnalysisLock/AnotherOwnersReleaseLeavesTheLock/embedded",
			`case owner == "" || !got.HeldBy(Grant{Owner: owner, Token: got.Token}):`, `case owner == "":`),
		seed("Resume has no time limit", "TestAnOperationOnAnUnavailableStoreGivesUpInItsTime/resume",
			`(*Hold[D], error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)`,
			`(*Hold[D], error) {
	ctx, cancel := context.WithCancel(ctx)`),
	}},
	{"lease/carry.go", []bug{
		seed("a carried change that could not be written replaces a newer one", "TestWhatARenewalCouldNotWriteIsWrittenByTheFinishUnlessItIsReplaced/replaced",
			`	if h.carried.sets == nil {`, `	if c.sets != nil {`),
		seed("a flood of carried changes is a flood of commits", "TestAFloodOfCarriedChangesIsOneCommitAnInterval",
			`due := h.tried.Add(every)`, `due := time.Now()`),
	}},
	{"lease/hold.go", []bug{
		seed("a carried change that the store refuses is not dropped", "lease/analysislock.TestAReportThatWaitsIsAnswered/refused_during_the_run",
			`append(slices.Clip(with.sets), nil)`, `append(with.sets[:min(1, len(with.sets))], map[bool][]func(*D){len(with.sets) == 0: {nil}}[true]...)`),
		seed("a release that lost the lease counts as the commit of what it carried", "TestAReleaseThatLostTheLeaseReportsWhatItCarriedAsLost",
			`return l.Owner == "" && l.Token == h.grant.Token })`, `return l.Owner != h.grant.Owner })`),
		seed("a release at a stop has 2 s, whatever is left", "TestAnOperationOnAnUnavailableStoreGivesUpInItsTime/release_with_a_later_deadline",
			`; ok && deadline.After(until) {`, `; ok && deadline.Before(time.Time{}) {`),
		seed("trust is measured from the end of the call", "TestASlowHeartbeatDoesNotExtendTrust",
			`c.At, c.Asked, p)`, `c.At, time.Now(), p)`),
		seed("the lease is let go before the run has ended", "TestTheEndOfTheCallersContextEndsTheBodysAndNoHeartbeat",
			`			err = body(ctx)`,
			`			ended := make(chan error, 1)
			go func() { ended <- body(ctx) }()
			select {
			case err = <-ended:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}`),
		seed("a renewal written unseen is taken for the next", "TestARenewalWrittenUnseenIsNotTakenForTheNext",
			`now.Add(offset)`, `now.Add(0*offset)`),
		seed("a release frees whatever it finds", suiteOnMemory+"ALockRewrittenMidRunCancelsTheRunAndStaysIntact",
			`		if err := loss(l, h.grant); err != nil {
			return l, err
		}
		return Drop(l, h.grant, refund), nil
	}, set, func(l Lease) bool { return l.Owner == "" && l.Token == h.grant.Token })`,
			`		return freed(l), nil
	}, set, func(Lease) bool { return false })`),
	}},
	{"lease/keep.go", []bug{
		seed("an analyzer that waits for a last checkpoint never ends when its lock is lost", "TestACarriedChangeIsRefusedAsSoonAsTheLeaseIsLost",
			`	for lost := k.loss(); lost != nil; {`, `	for lost := k.loss(); false; {`),
		seed("a run is not cancelled when its lock is lost", "TestALossHasAReason/taken",
			`		k.cancelBody(k.lost)
`,
			``),
		seed("nothing watches for the end of trust", "TestTheWatchdogNeedsNoStore/unavailable",
			`	k.done.Go(func() { k.watch(ctx) })
`,
			``),
		seed("a lost lock is asked for again as long as the run lasts", "TestALossIsReportedOnceAndTheStoreIsNotCalledAgain",
			`		k.end()
	}
`,
			`	}
`),
		seed("a lock that was lost to time is renewed by a run that ignores its cancellation", "TestALeaseThatWasNotRenewedInTimeStaysLost",
			`		k.end()
	}
`,
			`	}
`,
			`context.WithDeadline(ctx, k.hold.TrustedUntil())`,
			`context.WithCancel(ctx)`),
		seed("a renewal that failed is tried again after a whole heartbeat", "TestARenewalThatFailsIsTriedAgainAfterATenthOfAHeartbeat",
			`k.hold.lessor.policy.Heartbeat / 10`, `k.hold.lessor.policy.Heartbeat`),
		seed("explored: nothing watches for the end of trust", everyInterleaving,
			`	k.done.Go(func() { k.watch(ctx) })
`,
			``),
	}},
	{"lease/store.go", []bug{
		seed("a conflict is taken for a loss", "TestAConflictDoesNotLoseTheLease",
			`		e.conflicts++`, `		return true, &LostError{Reason: Taken}`),
		seed("a finish that the store has refused is tried again", "TestAnUnknownOutcomeIsResolved/finish:_it_was_refused",
			`		if e.refused != nil {
			return true, e.refused
		}
`,
			``),
		seed("a failed write is taken for a success", "TestAnUnknownOutcomeIsResolved/finish:_it_was_lost_before_the_commit",
			`	if err == nil {`, `	if err == nil || !errors.Is(err, ErrConflict) && !errors.Is(err, ErrRefused) {`),
	}},
}
