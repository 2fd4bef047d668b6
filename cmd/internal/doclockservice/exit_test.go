package doclockservice

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
)

func TestAConfigurationErrorExits2(t *testing.T) {
	for _, env := range [][]string{
		nil,
		{secret, "FIRESTORE_EMULATOR_HOST=127.0.0.1:1"}, // and no project
	} {
		if code, err := Main(t.Context(), environ(env...), &emulatortest.Log{}); code != 2 || err == nil {
			t.Errorf("%v: exit %d, %v", env, code, err)
		}
	}
}

func TestSIGTERMExits0(t *testing.T) {
	project := embedded(t)
	log := &emulatortest.Log{}
	exited := make(chan string, 1)
	go func() {
		code, err := Main(t.Context(), environ(secret, "FIRESTORE_EMULATOR_HOST="+os.Getenv("FIRESTORE_EMULATOR_HOST"),
			"GOOGLE_CLOUD_PROJECT="+project, "PORT=0"), log)
		exited <- fmt.Sprint(code, err)
	}()
	for deadline := time.Now().Add(hang); !strings.Contains(log.String(), `"serving"`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not serve")
		}
	}
	check(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	if exit := <-exited; exit != "0 <nil>" {
		t.Errorf("exit %s", exit)
	}
	if !strings.Contains(log.String(), `"severity":"INFO"`) || strings.Contains(log.String(), "0123456789abcdef") {
		t.Errorf("not Cloud Logging's, or with the secret: %s", log)
	}
}
