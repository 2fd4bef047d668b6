package mutants

// workRooms are the bugs of checkpoints, continuations and cancels that internal/proof must
// find by itself.
var workRooms = []room{
	{"lease/rules.go", []bug{
		seed("explored: a superseded run's checkpoint is written", everyInterleaving,
			`	if err := loss(l, g); err != nil {
		return l, err
	}
	was :=`,
			`	was :=`),
		seed("explored: a cancel keeps the token of the run that it ends", everyInterleaving,
			`	l.Token++
	return finished(l, by), nil`,
			`	return finished(l, by), nil`),
		seed("explored: a cancel leaves the analysis open", everyInterleaving,
			`	return finished(l, by), nil`, `	return freed(l), nil`),
	}},
	{"lease/carry.go", []bug{
		seed("explored: an older checkpoint replaces a newer one", everyInterleaving,
			`	h.carried = carried[D]{append([]func(*D){set}, less...), done, due}
`,
			`	if h.carried.sets == nil {
		h.carried = carried[D]{append([]func(*D){set}, less...), done, due}
	}
`),
		seed("simulated: a checkpoint whose commit failed is forgotten", manySeeds,
			`		h.carried = c
`,
			``),
		seed("explored: a checkpoint waits for the next heartbeat", everyInterleaving,
			`	h.carried = carried[D]{append([]func(*D){set}, less...), done, due}
`,
			`	h.carried = carried[D]{append([]func(*D){set}, less...), done, h.tried.Add(every + h.lessor.policy.Heartbeat)}
`),
	}},
	{"lease/hold.go", []bug{
		seed("explored: a release drops the checkpoint that is not yet written", everyInterleaving,
			`func(d *D) { apply(also, d); apply(set, d) }`,
			`func(d *D) {
			if set == nil {
				apply(also, d)
			}
			apply(set, d)
		}`),
		seed("explored: a second try forgets the checkpoint", everyInterleaving, `apply(also, d); apply(set`, `apply(also, d); also = nil; apply(set`),
		seed("simulated: a second try forgets the checkpoint", manySeeds, `apply(also, d); apply(set`, `apply(also, d); also = nil; apply(set`),
		seed("explored: a renewal is taken for written because an earlier one of the same millisecond was", everyInterleaving,
			`now.Add(offset)`, `now.Add(0 * offset)`),
	}},
	{"lease/analysislock/hold.go", []bug{
		seed("explored: READY keeps the checkpoint", everyInterleaving,
			`d.Progress, d.Checkpoint, d.NextAttemptAt = nil, &Checkpoint{}, time.Time{}`, `d.Progress, d.NextAttemptAt = nil, time.Time{}`),
		seed("explored: FAILED deletes the checkpoint", everyInterleaving,
			`		d.fail(code, message)
`,
			`		d.fail(code, message)
		d.Checkpoint = &Checkpoint{}
`),
		seed("explored: a failure for now deletes the checkpoint", everyInterleaving,
			`d.LastError, d.NextAttemptAt = failure, next`, `d.LastError, d.NextAttemptAt, d.Checkpoint = failure, next, &Checkpoint{}`),
	}},
	{"lease/analysislock/operator.go", []bug{
		seed("explored: recovery marks what was acquired since it was read", everyInterleaving,
			`d.Status != was.Status || d.Lock.Grant() != was.Lock.Grant() || !d.NextAttemptAt.Equal(was.NextAttemptAt) || !lease.Orphaned(d.Lock, c.At)`, `false`),
		seed("explored: recovery marks what has waited since it was read", everyInterleaving,
			`d.Status != was.Status || d.Lock.Grant() != was.Lock.Grant() || !d.NextAttemptAt.Equal(was.NextAttemptAt) || !lease`, `!lease`),
		seed("explored: an unlock leaves the time of the next attempt", everyInterleaving,
			`d.Lock, d.NextAttemptAt = lease.Break(d.Lock), time.Time{}`, `d.Lock = lease.Break(d.Lock)`),
		seed("explored: a requeue deletes the checkpoint", everyInterleaving,
			`if fresh || d.Status == Ready {`, `if true {`),
		seed("explored: a fresh start goes on from the checkpoint", everyInterleaving,
			`if fresh || d.Status == Ready {`, `if d.Status == Ready {`),
		seed("explored: a cancelled attempt stays open in the history", everyInterleaving,
			`		d.end(now, OutcomeCancelled, Cancelled, message)
		d.Lock = lock
`,
			`		d.Lock = lock
		d.end(now, OutcomeCancelled, Cancelled, message)
`),
	}},
	{"lease/analysislock/report.go", []bug{
		seed("simulated: no checkpoint advances a run", manySeeds,
			`	if h.committed == nil || h.committed.Value == nil {`, `	if h.committed == nil || h.committed != nil {`),
	}},
	{"internal/delivery/report.go", []bug{
		seed("a run that waits for its checkpoint is stalled", "TestARunThatWaitsForTheCommitOfItsCheckpointIsNotStalled",
			`		defer r.stall.Reset(r.StallTimeout)`, `		r.stall.Reset(r.StallTimeout)`),
		seed("explored: a synchronous checkpoint returns before its commit", everyInterleaving,
			`	select {
	case err := <-written:`,
			`	select {
	default:
		return nil
	case err := <-written:`),
		seed("simulated: a synchronous checkpoint returns before its commit", manySeeds,
			`	select {
	case err := <-written:`,
			`	select {
	default:
		return nil
	case err := <-written:`),
	}},
	{"internal/delivery/guard.go", []bug{
		seed("explored: an attempt is not given the checkpoint", everyInterleaving,
			`= w.Input, w.Checkpoint, reports, true`, `= w.Input, nil, reports, true`),
		seed("simulated: an attempt is not given the checkpoint", manySeeds,
			`= w.Input, w.Checkpoint, reports, true`, `= w.Input, nil, reports, true`),
	}},
	{"internal/delivery/booking.go", []bug{
		seed("explored: a continuation keeps the lock", everyInterleaving,
			`if a.release(ctx, analysislock.OutcomeContinued, true) && a.Queue`, `if a.Queue`),
		seed("explored: a continuation costs an attempt", everyInterleaving,
			`analysislock.OutcomeContinued, true)`, `analysislock.OutcomeContinued, false)`),
		seed("explored: a run continues that has committed no checkpoint", everyInterleaving,
			`	case !a.hold.Advanced():`, `	case false:`),
		seed("explored: a continuation does not write the last checkpoint before it decides", everyInterleaving,
			`	err := a.hold.Flush(ctx)`, `	err := ctx.Err()`),
		seed("explored: after a crash the redelivered task books another", everyInterleaving,
			`	if a.bookNext(ctx, a.acq.ExpiresAt) {`, `	if a.bookAt(ctx, taskqueue.Name("next", a.id, a.owner), a.acq.ExpiresAt) {`),
		seed("simulated: after a crash the redelivered task books another", manySeeds,
			`	if a.bookNext(ctx, a.acq.ExpiresAt) {`, `	if a.bookAt(ctx, taskqueue.Name("next", a.id, a.owner), a.acq.ExpiresAt) {`),
		seed("explored: a delivery that waits is acknowledged without a booking", everyInterleaving,
			`	if a.bookNext(ctx, a.acq.ExpiresAt) {`, `	if true {`),
		seed("simulated: a delivery that waits is acknowledged without a booking", manySeeds,
			`	if a.bookNext(ctx, a.acq.ExpiresAt) {`, `	if true {`),
	}},
}
