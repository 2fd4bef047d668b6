package google

import (
	"archive/zip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// mainClass is the emulator's entry point. It is named rather than taken from
// the jar's manifest: the Cloud SDK's jar has no Main-Class.
const mainClass = "com.google.cloud.datastore.emulator.firestore.CloudFirestore"

// errSilent says that a Java program was not heard out.
var errSilent = errors.New("google: java did not say its version in time")

// javaNeeded returns the Java release the jar was compiled for, read from its
// entry point: 11 for the Cloud SDK's 1.19, more for later ones.
func javaNeeded(jar string) (release int, err error) {
	archive, err := zip.OpenReader(jar)
	if err != nil {
		return 0, fmt.Errorf("google: %s: %w", jar, err)
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	class, err := archive.Open(strings.ReplaceAll(mainClass, ".", "/") + ".class")
	if err != nil {
		return 0, fmt.Errorf("google: %s is not the Firestore emulator: %w", jar, err)
	}
	defer func() { err = errors.Join(err, class.Close()) }()
	var head struct {
		Magic        uint32
		Minor, Major uint16
	}
	if err := binary.Read(class, binary.BigEndian, &head); err != nil || head.Magic != 0xCAFEBABE {
		return 0, fmt.Errorf("google: %s: %s is not a Java class", jar, mainClass)
	}
	return int(head.Major) - 44, nil // 45 was Java 1, 55 is Java 11
}

// java returns a Java program of at least the needed release.
func (f finder) java(ctx context.Context, needed int) (string, error) {
	var candidates []string
	if home := f.getenv("JAVA_HOME"); home != "" {
		candidates = append(candidates, filepath.Join(home, "bin", "java"))
	}
	if onPath := f.onPath("java"); onPath != "" {
		candidates = append(candidates, onPath)
	}
	tooOld := ""
	for _, candidate := range candidates {
		home, release, err := askJava(ctx, candidate)
		if errors.Is(err, errSilent) {
			return "", err // it may be a good one
		}
		if err != nil {
			continue // macOS has a /usr/bin/java that only says there is none
		}
		if release >= needed {
			return filepath.Join(home, "bin", "java"), nil
		}
		tooOld = fmt.Sprintf("; %s is Java %d", candidate, release)
	}
	return "", fmt.Errorf("%w: it needs a Java runtime, version %d or later, in JAVA_HOME or on PATH%s",
		ErrNotFound, needed, tooOld)
}

// askJava runs the program and returns where its runtime is and which release it
// implements. Going through java.home skips the shims of version managers, which
// would stand between us and the process to end.
func askJava(ctx context.Context, program string) (home string, release int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-XshowSettings:properties", "-version")
	cmd.Env = javaEnviron()
	cmd.WaitDelay = time.Second
	printed, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", 0, fmt.Errorf("%w: %s: %w", errSilent, program, context.Cause(ctx))
	}
	if err != nil {
		return "", 0, fmt.Errorf("google: %s: %w", program, err)
	}
	for line := range strings.Lines(string(printed)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		switch name {
		case "java.home":
			home = value
		case "java.specification.version":
			// Java 8 calls itself 1.8.
			release, err = strconv.Atoi(strings.TrimPrefix(value, "1."))
		}
	}
	if err != nil || home == "" || release == 0 {
		return "", 0, fmt.Errorf("google: %s does not say which Java it is", program)
	}
	return home, release, nil
}
