package emulatortest

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"taskguard/emulator/google"
)

func TestTheFirstTestStartsTheEmulatorAndAllShareIt(t *testing.T) {
	var s shared
	started := 0 // start is called under the lock of s
	start := counted(&started, &double{}, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, want := s.lend(t, environment(nil), start), "double:1"; got != want {
				t.Errorf("host %q, want %q", got, want)
			}
		})
	}
	wg.Wait()
	if started != 1 {
		t.Errorf("started %d times, want once", started)
	}
}

func TestTheOutcomeOfStartingIsKept(t *testing.T) {
	var s shared
	started := 0
	broken := errors.New("broken")
	start := counted(&started, nil, broken)
	for range 2 {
		if _, err := s.get(environment(nil), start); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	}
	if started != 1 {
		t.Errorf("started %d times, want once", started)
	}
	if err := s.stop(); err != nil {
		t.Errorf("stopping where nothing started: %v", err)
	}
}

func TestWhatATestSeesOfAnEmulatorThatIsNotThere(t *testing.T) {
	missing := fmt.Errorf("%w: no jar", google.ErrNotFound)
	for _, tc := range []struct {
		name string
		env  map[string]string
		err  error
		want string
	}{
		{"not installed: skipped", nil, missing, "skip: needs Google's emulator: " + missing.Error()},
		{"not installed, REQUIRE 0: skipped", map[string]string{requireVariable: "0"}, missing, "skip: needs Google's emulator: " + missing.Error()},
		{"not installed but required: failed", map[string]string{requireVariable: "1"}, missing, "fail: REQUIRE_GOOGLE_EMULATOR is set, but " + missing.Error()},
		{"installed but broken: failed", nil, errors.New("no answer"), "fail: no answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s shared
			got := outcome(t, func(tb testing.TB) {
				s.lend(tb, environment(tc.env), func() (emulator, error) { return nil, tc.err })
			})
			if got != tc.want {
				t.Errorf("the test sees %q, want %q", got, tc.want)
			}
		})
	}
}

func TestARunningEmulatorIsUsedAndNeverStopped(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	env := environment(map[string]string{hostVariable: l.Addr().String()})
	var s shared
	if got, want := s.lend(t, env, neverStart(t)), l.Addr().String(); got != want {
		t.Errorf("host %q, want %q", got, want)
	}
	if err := s.stop(); err != nil {
		t.Errorf("stopping what is not ours: %v", err)
	}
}

func TestAnAddressWhereNothingAnswersFailsTheTest(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := l.Addr().String()
	l.Close()
	var s shared
	got := outcome(t, func(tb testing.TB) {
		s.lend(tb, environment(map[string]string{hostVariable: host}), neverStart(t))
	})
	want := fmt.Sprintf("fail: emulatortest: FIRESTORE_EMULATOR_HOST is set to %q but nothing answers there", host)
	if !strings.HasPrefix(got, want) {
		t.Errorf("the test sees %q, want %q", got, want)
	}
}

func TestStopEndsWhatWasStarted(t *testing.T) {
	var s shared
	d := &double{stopErr: errors.New("ended by itself")}
	if _, err := s.get(environment(nil), func() (emulator, error) { return d, nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); !errors.Is(err, d.stopErr) {
		t.Errorf("error %v, want %v", err, d.stopErr)
	}
	if d.stops != 1 {
		t.Errorf("stopped %d times, want once", d.stops)
	}
}

func TestAProjectIDIsValidAndNewEachTime(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
	for test, prefix := range map[string]string{
		"TestA -- b":             "t-a-b-",
		"TestLease":              "t-lease-",
		"TestA/the_owner's_turn": "t-a-the-owner-s-tur-",
		"Test":                   "t-",
		"":                       "t-",
		"Test/---/###":           "t-",
		"Test/日本語":               "t-",
		"TestSlowHeartbeatDoesNotExtendTrustOnAnyStoreAtAll": "t-slowheartbeatdoes-",
	} {
		one, other := projectID(test), projectID(test)
		if !valid.MatchString(one) || !strings.HasPrefix(one, prefix) || strings.Contains(one, "--") {
			t.Errorf("project of %q is %q, want %s… of 6 to 30 letters, digits and single hyphens", test, one, prefix)
		}
		if one == other {
			t.Errorf("project of %q is %q twice", test, one)
		}
	}
	if one, other := Project(t), Project(t); one == other {
		t.Errorf("Project returned %q twice", one)
	}
}

func environment(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func counted(calls *int, e emulator, err error) func() (emulator, error) {
	return func() (emulator, error) {
		*calls++
		return e, err
	}
}

func neverStart(t *testing.T) func() (emulator, error) {
	return func() (emulator, error) {
		t.Error("an emulator was started")
		return &double{}, nil
	}
}

// A double stands for a running emulator.
type double struct {
	stops   int
	stopErr error
}

func (*double) Host() string { return "double:1" }

func (d *double) Stop() error {
	d.stops++
	return d.stopErr
}

// outcome runs f as a test of its own and returns how that was ended.
func outcome(t *testing.T, f func(testing.TB)) string {
	r := &recorder{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(r)
	}()
	<-ended
	return r.outcome
}

// A recorder is a test that writes down how it is ended.
type recorder struct {
	testing.TB
	outcome string
}

func (r *recorder) Skipf(format string, args ...any) { r.end("skip: " + fmt.Sprintf(format, args...)) }

func (r *recorder) Fatalf(format string, args ...any) { r.end("fail: " + fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) { r.end("fail: " + fmt.Sprint(args...)) }

func (r *recorder) end(outcome string) {
	r.outcome = outcome
	runtime.Goexit()
}
