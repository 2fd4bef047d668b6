package operator_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/lease/leasetest"
	"taskguard/locks/operator"
)

func TestAnOperatorBelongsToOneSession(t *testing.T) { // O1
	w := newFixture(t)
	w.assign("A", "tsukuyomi")
	free, err := w.pool("B").Available(t.Context())
	if got := ids(free); err != nil || got != "angie alma akane dia kana" {
		t.Errorf("available to another: %s, %v", got, err)
	}
	w.wantBusy("B", "tsukuyomi")
	s, err := w.pool("B").Status(t.Context())
	if err != nil || s.Operators[0].State != operator.Busy || s.Operators[1].State != operator.Available || s.Operator.ID != "" {
		t.Errorf("status for another: %+v, %v", s, err)
	}
	w.wantWritten("A=tsukuyomi")
}

func TestTheRandomChoiceExcludesOperatorsInUse(t *testing.T) { // O1
	w := newFixture(t)
	var got []string
	for _, session := range []string{"A", "B", "C", "D", "E", "F"} { // always the last that is free
		got = append(got, w.assign(session, "").Operator.ID)
	}
	if want := "kana dia akane alma angie tsukuyomi"; strings.Join(got, " ") != want {
		t.Errorf("got %v; want %s", got, want)
	}
	_, err := w.pool("G").Assign(t.Context(), "")
	if !errors.Is(err, operator.ErrNoneFree) {
		t.Errorf("err = %v; want none free", err)
	}
}

func TestASessionsOwnOperatorIsAvailableToIt(t *testing.T) { // O7
	w := newFixture(t)
	w.assign("A", "alma")
	free, err := w.pool("A").Available(t.Context())
	if got := ids(free); err != nil || got != ids(six) {
		t.Errorf("available: %s, %v; want all", got, err)
	}
	s, err := w.pool("A").Status(t.Context())
	if err != nil || s.Operator.ID != "alma" || s.Operators[2].State != operator.Own || !s.ExpiresAt.Equal(noon.Add(4*time.Hour)) {
		t.Errorf("status: %+v, %v", s, err)
	}
}

func TestAssigningWithoutAnIDKeepsTheCurrentOne(t *testing.T) { // C
	w := newFixture(t)
	w.assign("A", "angie")
	if a := w.assign("A", ""); a.Operator.ID != "angie" || !a.Kept {
		t.Errorf("%+v; want angie kept", a)
	}
}

func TestReleasingWithoutAnOperatorSucceeds(t *testing.T) { // C
	w := newFixture(t)
	if _, ok, err := w.pool("A").Release(t.Context()); ok || err != nil {
		t.Errorf("%v, %v; want not assigned, and no error", ok, err)
	}
	w.assign("A", "kana")
	if was, ok, err := w.pool("A").Release(t.Context()); !ok || err != nil || was.ID != "kana" {
		t.Errorf("%+v, %v, %v; want kana", was, ok, err)
	}
	w.wantWritten()
	w.assign("B", "kana")
}

func TestClearFreesEverySessionsOperator(t *testing.T) { // C
	w := newFixture(t)
	w.assign("A", "kana")
	w.assign("B", "alma")
	if n, err := w.pool("C").Clear(t.Context()); n != 2 || err != nil {
		t.Errorf("%d, %v; want 2", n, err)
	}
	w.wantWritten()
}

func TestEveryUseRefreshes(t *testing.T) { // C
	for name, use := range map[string]func(p *operator.Pool, ctx ctx) error{
		"available": func(p *operator.Pool, ctx ctx) error { _, err := p.Available(ctx); return err },
		"status":    func(p *operator.Pool, ctx ctx) error { _, err := p.Status(ctx); return err },
		"refresh":   func(p *operator.Pool, ctx ctx) error { _, _, err := p.Refresh(ctx); return err },
		"assign":    func(p *operator.Pool, ctx ctx) error { _, err := p.Assign(ctx, ""); return err },
		"assign its own": func(p *operator.Pool, ctx ctx) error {
			a, err := p.Assign(ctx, "kana")
			if err == nil && !a.Kept {
				return fmt.Errorf("%+v; want it kept", a)
			}
			return err
		},
		"a refused assign": func(p *operator.Pool, ctx ctx) error {
			if _, err := p.Assign(ctx, "dia"); err == nil {
				return errors.New("assigned")
			}
			return nil
		},
	} {
		w := newFixture(t)
		w.assign("A", "kana")
		w.now = noon.Add(3 * time.Hour)
		w.assign("B", "dia")
		if err := use(w.pool("A"), t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w.now = noon.Add(7*time.Hour - time.Millisecond)
		w.wantBusy("C", "kana")
		w.now = noon.Add(7 * time.Hour)
		w.assign("C", "kana")
	}
}

func TestTheCurrentOperatorIsKeptUntilTheTargetIsFree(t *testing.T) { // X
	w := newFixture(t)
	w.assign("A", "kana")
	w.assign("B", "dia")
	w.wantBusy("B", "kana")
	w.wantWritten("A=kana", "B=dia")
	if a := w.assign("B", "alma"); a.Kept {
		t.Errorf("%+v; want a new one", a)
	}
	w.wantWritten("A=kana", "B=alma")
	var unknown *operator.UnknownError
	if _, err := w.pool("B").Assign(t.Context(), "unknown"); !errors.As(err, &unknown) {
		t.Errorf("err = %v; want unknown", err)
	}
	w.wantWritten("A=kana", "B=alma")
}

func TestALostReplyChangesNoResult(t *testing.T) {
	w := newFixture(t)
	losingReply := func() *operator.Pool {
		return w.poolOver(w.over(leasetest.NewFaulty(w.file(), leasetest.On(leasetest.Swap, leasetest.DropAfter)), "A"))
	}
	a, err := losingReply().Assign(t.Context(), "")
	if err != nil || a.Operator.ID != "kana" || a.Kept {
		t.Errorf("assign: %+v, %v", a, err)
	}
	if _, ok, err := losingReply().Release(t.Context()); !ok || err != nil {
		t.Errorf("release: %v, %v", ok, err)
	}
	w.assign("B", "")
	if n, err := losingReply().Clear(t.Context()); n != 1 || err != nil {
		t.Errorf("clear: %v, %v", n, err)
	}
}

func TestAPoolNeedsOperatorsOfDifferentIDs(t *testing.T) {
	s := newFixture(t).storage("A")
	for name, operators := range map[string][]operator.Operator{
		"none": nil, "no id": {{Name: "x"}}, "twice": {{ID: "x"}, {ID: "x"}}, "not UTF-8": {{ID: "\xff"}},
	} {
		if _, err := operator.New(s, operators, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAnOperatorOfTwoSessionsIsSharedOnlyUntilTheyAssign(t *testing.T) {
	w := newFixture(t)
	entry := `{"data":"kana","updated_at":"2025-08-18T12:00:00.000Z"}`
	w.put(`{"storage":{"A":` + entry + `,"B":` + entry + `}}`)
	if a := w.assign("A", ""); a.Operator.ID != "dia" || a.Kept {
		t.Errorf("A got %+v; want dia", a)
	}
	if b := w.assign("B", ""); b.Operator.ID != "kana" || !b.Kept {
		t.Errorf("B got %+v; want to keep kana", b)
	}
}

// Another session writes between the reading and the writing: the decision is made again.
func TestCheckAndAssignmentAreOneStep(t *testing.T) { // X
	w := newFixture(t)
	w.assign("B", "dia")
	s := w.over(&between{w.file(), func() { w.assign("A", "kana") }}, "B")
	_, err := w.poolOver(s).Assign(t.Context(), "kana")
	if !errors.As(err, new(*operator.BusyError)) {
		t.Errorf("err = %v; want it busy", err)
	}
	w.wantWritten("A=kana", "B=dia")
}
