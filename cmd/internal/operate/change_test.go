package operate

import (
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"taskguard/cmd/internal/console"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/document"
	"taskguard/repo"
)

type backend = emulatortest.Backend

// Firestore makes the change, its reply is lost, and then it does not answer any more.
func TestChange_Unconfirmed(t *testing.T) {
	inBubble := func(name string, test func(*testing.T, *backend, *forgetful, *emulatortest.Log)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, emulatortest.Embedded(t), &forgetful{}, &emulatortest.Log{})
			})
		})
	}
	logged := func(t *testing.T, log *emulatortest.Log, who string) {
		t.Helper()
		text := log.String()
		if strings.Count(text, mayHaveChanged) != 1 || !strings.Contains(text, "by="+who) {
			t.Errorf("the log does not name %s once: %s", who, text)
		}
	}
	for _, verb := range []console.Verb{
		console.Unlock, console.Requeue, console.RequeueFresh, console.Cancel, console.Resolve, console.Delete,
	} {
		inBubble(string(verb), func(t *testing.T, b *backend, f *forgetful, log *emulatortest.Log) {
			b.Put(t, "x", doc{"status": "FAILED", "lockToken": 1})
			switch verb {
			case console.Resolve:
				act := doc{"state": "started", "token": 1}
				b.Merge(t, "x", doc{"openEffects": 1, "effects": doc{"charge": act}})
			case console.Unlock, console.Cancel:
				b.Merge(t, "x", doc{"status": "PROCESSING", "lockOwner": "w", "lockExpiresAt": at(time.Hour)})
			}
			before := b.Fields(t, "x")
			request := console.Change{Verb: verb, ID: "x", Who: "me", Act: "charge"}
			cl := clientOf(t, b, f.options()...)
			done, err := cl.change(t.Context(), request, slog.New(slog.NewTextHandler(log, nil)))
			if !errors.Is(err, console.ErrUnconfirmed) || done != (changed{}) {
				t.Errorf("%+v, %v", done, err)
			}
			if reflect.DeepEqual(b.Fields(t, "x"), before) {
				t.Error("nothing is changed, so this proves nothing")
			}
			logged(t, log, "me")
		})
	}
	inBubble("all", func(t *testing.T, b *backend, f *forgetful, log *emulatortest.Log) {
		b.Put(t, "x", doc{"status": "QUEUED", "updatedAt": at(0)})
		time.Sleep(time.Minute)
		o := consoleOperator{clientOf(t, b, f.options()...), slog.New(slog.NewTextHandler(log, nil))}
		all := console.Which{Filter: func(time.Time) repo.Filter { return repo.Filter{} }}
		got, err := o.ChangeAll(t.Context(), console.Cancel, all, "me", time.Time{}, 10, false)
		ok(t, err)
		want := console.Bulk{Before: got.Before, Matched: 1, Failed: 1, Unconfirmed: 1}
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		logged(t, log, "me")
		if strings.Contains(log.String(), "changed nothing") {
			t.Errorf("%s", log)
		}
	})
	inBubble("all of a command", func(t *testing.T, b *backend, f *forgetful, _ *emulatortest.Log) {
		b.Put(t, "x", doc{"status": "QUEUED", "updatedAt": at(0)})
		c, out := call("cancel")
		c.JSON = true
		var all bulk
		all.filter.declare(&cobra.Command{}, nil)
		err := all.run(t.Context(), c, clientOf(t, b, f.options()...), console.Cancel)
		for _, want := range []string{`"outcome":"failed","reason":"not_confirmed"`, `"not_confirmed":1`} {
			if err == nil || !strings.Contains(out.String(), want) {
				t.Errorf("%v: %s; want %s", err, out, want)
			}
		}
	})
	inBubble("a room", func(t *testing.T, b *backend, f *forgetful, log *emulatortest.Log) {
		locks := func(opts ...grpc.DialOption) *document.Locks {
			rooms := must.Get(repo.OpenRooms(t.Context(), b.Project, repo.Options{}, b.Client(t, opts...)...))(t)
			return must.Get(document.New(rooms, 0))(t)
		}
		must.Get(locks().Acquire(t.Context(), "a", "w"))(t)
		c, _ := call("unlock")
		err := releaseRoom(t.Context(), c, locks(f.options()...), "a", slog.New(slog.NewTextHandler(log, nil)))
		if !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		logged(t, log, operator())
	})
}

// A change that was never sent has changed nothing.
func TestChange_NotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f, log := emulatortest.Embedded(t), &forgetful{}, &emulatortest.Log{}
		cl := clientOf(t, b, f.options()...)
		f.down.Store(true)
		for _, verb := range []console.Verb{console.Cancel, console.Delete} {
			request := console.Change{Verb: verb, ID: "x", Who: "me"}
			_, err := cl.change(t.Context(), request, slog.New(slog.NewTextHandler(log, nil)))
			if !errors.Is(err, lease.ErrUnavailable) || errors.Is(err, console.ErrUnconfirmed) {
				t.Errorf("%s: %v", verb, err)
			}
		}
		if log.String() != "" {
			t.Errorf("%s", log)
		}
	})
}

// After conflicts until its deadline, a change fails with both errors. Skipped would mean that nothing was changed.
func TestSkipReason_Unconfirmed(t *testing.T) {
	err := errors.Join(console.ErrUnconfirmed, lease.ErrUnavailable, lease.ErrConflict)
	if got := skipReason(console.Cancel, changed{}, err); got != "" {
		t.Errorf("%q", got)
	}
}
