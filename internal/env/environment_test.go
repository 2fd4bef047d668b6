package env

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAWrongValueIsAProblemAndTheDefaultIsUsed(t *testing.T) {
	e := environment("ONE=c", "INTEGER=9", "DURATION=-1s", "ADDRESS=http://h:1", "NAME=a~b!")
	if e.OneOf("ONE", "a", "b") != "a" || e.Integer("INTEGER", 2, 1, 8) != 2 || e.Duration("DURATION", time.Hour) != time.Hour || e.Address("ADDRESS") != "http://h:1" {
		t.Error("another value")
	}
	if lines := strings.Count(e.Err().Error(), "\n") + 1; lines != 4 || e.Name("NAME", "") != "a~b!" || strings.Count(e.Err().Error(), "\n") != 3 {
		t.Errorf("%v", e.Err())
	}
	if unset := NewEnvironment(func(string) (string, bool) { return "x", false }); unset.Text("TEXT", "default") != "default" {
		t.Error("an unset variable has a value")
	}
}

// environment returns the environment of settings such as PORT=1.
func environment(words ...string) *Environment {
	set := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		set[k] = v
	}
	return NewEnvironment(func(k string) (string, bool) { v, ok := set[k]; return v, ok })
}

func TestTheEmulatorsAddressIsInItsErrors(t *testing.T) {
	down := errors.New("down")
	for emulator, want := range map[string]string{"": "down", "h:1": "emulator h:1: down"} {
		if got := Located(emulator, down); got.Error() != want || !errors.Is(got, down) || Located(emulator, nil) != nil {
			t.Errorf("%q: %v", emulator, got)
		}
	}
}
