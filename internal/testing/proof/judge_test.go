package proof

import (
	"fmt"
	"testing"
	"time"
)

func TestHistory_Add(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	write := func(k Kind, token int64, second int) Write {
		return Write{
			Kind: k, By: fmt.Sprint("delivery ", token), Owner: fmt.Sprint("owner ", token), Token: token,
			At: at(second), Expires: at(second + 10),
		}
	}
	acquire := func(token int64, second int) Write { return write(Acquire, token, second) }
	beat := func(second int) Write { return write(Heartbeat, 1, second) }
	release := func(second int) Write { return write(Release, 1, second) }
	finish := func(token int64) Write { return write(Finish, token, 20) }
	unlock, requeue := Write{Kind: Unlock, At: at(5)}, Write{Kind: Requeue, At: at(5)}
	running, mixed := release(5), finish(2)
	running.Running = true
	mixed.Token = 1
	foreign, early, live := finish(1), finish(1), beat(5)
	foreign.Owner, early.Running, live.Running = "another", true, true
	for name, c := range map[string]struct {
		writes        []Write
		wrong, steals int
	}{
		"two attempts":                 {[]Write{acquire(1, 0), beat(5), release(6), acquire(2, 6), finish(2)}, 0, 0},
		"a steal":                      {[]Write{acquire(1, 0), beat(5), acquire(2, 15), finish(2)}, 0, 1},
		"an unlock, and the next":      {[]Write{acquire(1, 0), unlock, acquire(2, 5), finish(2)}, 0, 0},
		"a requeue, and the next":      {[]Write{acquire(1, 0), finish(1), requeue, acquire(2, 5), finish(2)}, 0, 0},
		"a cancel of a run":            {[]Write{acquire(1, 0), write(Cancel, 2, 5)}, 0, 0},
		"a requeue of the cancelled":   {[]Write{acquire(1, 0), write(Cancel, 2, 5), requeue, acquire(3, 6)}, 0, 0},
		"the last attempt":             {[]Write{acquire(1, 0), write(GiveUp, 2, 11)}, 0, 1},
		"a steal before the expiry":    {[]Write{acquire(1, 0), beat(5), acquire(2, 14)}, 1, 1},
		"a token again":                {[]Write{acquire(1, 0), release(1), acquire(1, 1)}, 1, 0},
		"a skipped token":              {[]Write{acquire(1, 0), release(1), acquire(3, 1)}, 1, 0},
		"a finish of the superseded":   {[]Write{acquire(1, 0), acquire(2, 15), finish(1)}, 1, 1},
		"the result of the superseded": {[]Write{acquire(1, 0), acquire(2, 15), mixed}, 1, 1},
		"a second finish":              {[]Write{acquire(1, 0), finish(1), finish(1)}, 2, 0},
		"a heartbeat after a release":  {[]Write{acquire(1, 0), release(1), beat(5)}, 1, 0},
		"a release during a run":       {[]Write{acquire(1, 0), running}, 1, 0},
		"a delay, and the next":        {[]Write{acquire(1, 0), write(Delay, 1, 15), acquire(2, 15), finish(2)}, 0, 0},
		"a delay during a run":         {[]Write{acquire(1, 0), write(Delay, 1, 5)}, 1, 0},
		"a mark during a run":          {[]Write{acquire(1, 0), write(Mark, 1, 5)}, 1, 0},
		"a requeue during a run":       {[]Write{acquire(1, 0), requeue}, 1, 0},
		"a result after a cancel":      {[]Write{acquire(1, 0), write(Cancel, 2, 5), finish(1)}, 2, 0},
		"a cancel that takes no token": {[]Write{acquire(1, 0), write(Cancel, 1, 5)}, 1, 0},
		"a cancel of the finished":     {[]Write{acquire(1, 0), finish(1), write(Cancel, 2, 5)}, 1, 0},
		"giving up a held lock":        {[]Write{acquire(1, 0), write(GiveUp, 2, 5)}, 1, 1},
		"an answer during a run":       {[]Write{acquire(1, 0), {Kind: Resolve, At: at(5)}}, 1, 0},
		"a finish after an unlock":     {[]Write{acquire(1, 0), unlock, finish(1)}, 1, 0},
		"another owner's finish":       {[]Write{acquire(1, 0), foreign}, 1, 0},
		"a finish during a run":        {[]Write{acquire(1, 0), early}, 1, 0},
		"a heartbeat during a run":     {[]Write{acquire(1, 0), live}, 0, 0},
		"an unknown write":             {[]Write{acquire(1, 0), {Kind: Other}}, 1, 0},
	} {
		var h History
		for _, w := range c.writes {
			h.Add(w)
		}
		if len(h.Wrong) != c.wrong || h.Steals != c.steals {
			t.Errorf("%s: %d steals, and %q; want %d and %d of these", name, h.Steals, h.Wrong, c.steals, c.wrong)
		}
	}
}

func TestSpan_Uncovered(t *testing.T) {
	for _, c := range []struct {
		excuses []Span
		want    time.Duration
	}{
		{nil, 4}, {[]Span{{5, 8}}, 2}, {[]Span{{8, 9}}, 3}, {[]Span{{7, 30}, {2, 7}}, 0}, {[]Span{{11, 12}, {2, 3}}, 4},
		{[]Span{{7, 9}, {8, 9}}, 2},
	} {
		if got := (Span{6, 10}).Uncovered(c.excuses...); got != c.want {
			t.Errorf("without %v: %v, want %v", c.excuses, got, c.want)
		}
	}
	if got := (Span{6, 5}).Uncovered(Span{1, 9}); got != 0 {
		t.Errorf("an empty span: %v", got)
	}
}
