package google

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

const (
	jarVariable  = "GOOGLE_FIRESTORE_EMULATOR_JAR"
	hideVariable = "TASKGUARD_NO_GOOGLE_EMULATOR"
	howToInstall = "install it with `gcloud components install cloud-firestore-emulator`" +
		" or `apt-get install google-cloud-cli-firestore-emulator`, or name its jar in " + jarVariable
)

// ErrNotFound means that the emulator, or the Java runtime it needs, is not on
// this machine. The errors of Find wrap it and name the missing part.
var ErrNotFound = errors.New("google: the Firestore emulator is not installed")

// Installation is the emulator's Jar and the program Java that runs it, as paths.
type Installation struct{ Jar, Java string }

// Find looks for the emulator and for a Java runtime. It runs java once, which
// takes about 0.1 s.
//
// It looks for the jar in GOOGLE_FIRESTORE_EMULATOR_JAR, then in the Google Cloud
// SDK that holds the gcloud on PATH, then in the Debian package's; and for Java in
// JAVA_HOME, then on PATH.
//
// The error wraps [ErrNotFound] if something is missing, or if
// TASKGUARD_NO_GOOGLE_EMULATOR is set (to anything but "" or "0"). It does not wrap it if
// the jar that GOOGLE_FIRESTORE_EMULATOR_JAR names does not exist.
func Find() (Installation, error) {
	if v := os.Getenv(hideVariable); v != "" && v != "0" {
		return Installation{}, fmt.Errorf("%w: hidden by %s", ErrNotFound, hideVariable)
	}
	jar, err := findJar()
	if err != nil {
		return Installation{}, err
	}
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	// macOS has a /usr/bin/java that only reports that there is none.
	if err := exec.Command(java, "-version").Run(); err != nil {
		return Installation{}, fmt.Errorf("%w: it needs a Java runtime, in JAVA_HOME or on PATH: %w", ErrNotFound, err)
	}
	return Installation{Jar: jar, Java: java}, nil
}

func findJar() (string, error) {
	if named := os.Getenv(jarVariable); named != "" {
		if _, err := os.Stat(named); err != nil {
			return "", fmt.Errorf("google: %s: %w", jarVariable, err)
		}
		return named, nil
	}
	roots := []string{"/usr/lib/google-cloud-sdk"} // the Debian package's
	if gcloud, err := exec.LookPath("gcloud"); err == nil {
		// On PATH there is often only a link to the program in <root>/bin.
		if resolved, err := filepath.EvalSymlinks(gcloud); err == nil {
			roots = slices.Insert(roots, 0, filepath.Dir(filepath.Dir(resolved)))
		}
	}
	for _, root := range roots {
		jar := filepath.Join(root, "platform", "cloud-firestore-emulator", "cloud-firestore-emulator.jar")
		if _, err := os.Stat(jar); err == nil {
			return jar, nil
		}
	}
	return "", fmt.Errorf("%w: no cloud-firestore-emulator.jar in any Google Cloud SDK: %s", ErrNotFound, howToInstall)
}
