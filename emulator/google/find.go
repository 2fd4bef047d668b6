package google

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	// jarVariable names the emulator's jar and comes before every other place.
	jarVariable = "GOOGLE_FIRESTORE_EMULATOR_JAR"
	// hideVariable set to anything but "" or "0" makes Find behave as if Google's
	// emulator were not installed, to see what a machine without it sees.
	hideVariable = "TASKGUARD_NO_GOOGLE_EMULATOR"

	howToInstall = "install it with `gcloud components install cloud-firestore-emulator`" +
		" or `apt-get install google-cloud-cli-firestore-emulator`," +
		" or name its jar in " + jarVariable
)

// ErrNotFound says that the emulator, or the Java runtime it needs, is not on
// this machine. What Find returns wraps it with which piece is missing and how
// to install it.
var ErrNotFound = errors.New("google: the Firestore emulator is not installed")

// An Installation is what is needed to run the emulator.
type Installation struct {
	Jar  string // the emulator's jar
	Java string // the java program, not a version manager's shim for it
}

// Find looks for the emulator and for a Java runtime new enough to run it. It
// starts java once to ask its version, which takes about 0.1 s.
//
// The jar is looked for in GOOGLE_FIRESTORE_EMULATOR_JAR, then below the roots
// of the Google Cloud SDK: CLOUDSDK_ROOT_DIR, the one that holds the gcloud on
// PATH, ~/google-cloud-sdk, and the Debian package's. Java is looked for in
// JAVA_HOME, then on PATH.
//
// The error wraps [ErrNotFound] where something is missing. A jar named in
// GOOGLE_FIRESTORE_EMULATOR_JAR that cannot be used is another error: what was
// asked for by name is not replaced by something else.
//
// With TASKGUARD_NO_GOOGLE_EMULATOR set (to anything but "" or "0") Find reports
// [ErrNotFound] without looking.
func Find() (Installation, error) {
	return thisMachine().find(context.Background())
}

// A finder is where Find looks.
type finder struct {
	getenv   func(string) string
	home     string   // the user's home directory, "" if there is none
	packages []string // roots of the SDK as distribution packages install it
}

func thisMachine() finder {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // no home: one place fewer to look in
	}
	return finder{
		getenv: os.Getenv,
		home:   home,
		packages: []string{
			"/usr/lib/google-cloud-sdk",
			"/usr/share/google-cloud-sdk",
		},
	}
}

func (f finder) find(ctx context.Context) (Installation, error) {
	if set(f.getenv(hideVariable)) {
		return Installation{}, fmt.Errorf("%w: hidden by %s", ErrNotFound, hideVariable)
	}
	jar, err := f.jar()
	if err != nil {
		return Installation{}, err
	}
	needed, err := javaNeeded(jar)
	if err != nil {
		return Installation{}, err
	}
	java, err := f.java(ctx, needed)
	if err != nil {
		return Installation{}, err
	}
	return Installation{Jar: jar, Java: java}, nil
}

// jar returns the path of the emulator's jar.
func (f finder) jar() (string, error) {
	if named := f.getenv(jarVariable); named != "" {
		if err := regular(named); err != nil {
			return "", fmt.Errorf("google: %s: %w", jarVariable, err)
		}
		return named, nil
	}
	for _, root := range f.roots() {
		jar := filepath.Join(root, "platform", "cloud-firestore-emulator", "cloud-firestore-emulator.jar")
		if regular(jar) == nil {
			return jar, nil
		}
	}
	return "", fmt.Errorf("%w: no cloud-firestore-emulator.jar in any Google Cloud SDK: %s", ErrNotFound, howToInstall)
}

// roots returns the directories a Google Cloud SDK may be in, first choice first.
func (f finder) roots() []string {
	var roots []string
	if root := f.getenv("CLOUDSDK_ROOT_DIR"); root != "" {
		roots = append(roots, root)
	}
	if gcloud := f.onPath("gcloud"); gcloud != "" {
		// On PATH there is often only a link to the program in <root>/bin.
		if resolved, err := filepath.EvalSymlinks(gcloud); err == nil {
			roots = append(roots, filepath.Dir(filepath.Dir(resolved)))
		}
	}
	if f.home != "" {
		roots = append(roots, filepath.Join(f.home, "google-cloud-sdk"))
	}
	return append(roots, f.packages...)
}

// onPath returns the program's path, or "" if no directory of PATH has it.
func (f finder) onPath(program string) string {
	for _, dir := range filepath.SplitList(f.getenv("PATH")) {
		if !filepath.IsAbs(dir) {
			continue // never run a program because of the directory we are in
		}
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path
		}
	}
	return ""
}

// regular returns an error unless path is an existing file, not a directory.
func regular(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "use", Path: path, Err: errors.New("not a regular file")}
	}
	return nil
}

// set reports whether a switch in the environment is on.
func set(value string) bool { return value != "" && value != "0" }
