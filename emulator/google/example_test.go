package google_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"taskguard/emulator/google"
)

// A program runs on Google's emulator, where that is installed.
func Example() {
	emulator, err := google.Start(context.Background(), "512m")
	if errors.Is(err, google.ErrNotFound) {
		fmt.Println("skipped:", err)
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	tests := exec.Command("go", "test", "./...")
	tests.Env = append(os.Environ(), "FIRESTORE_EMULATOR_HOST="+emulator.Host())
	err = tests.Run()
	fmt.Println(errors.Join(err, emulator.Stop()))
}
