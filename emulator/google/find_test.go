package google

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindTakesTheFirstPlaceThatHasTheJar(t *testing.T) {
	for _, tc := range []struct {
		name string
		jars []string // where there is one, below the machine's root
		want string
	}{
		{"the named jar comes first", []string{"named", "sdk", "gcloud", "home", "package"}, "named"},
		{"then CLOUDSDK_ROOT_DIR", []string{"sdk", "gcloud", "home", "package"}, "sdk"},
		{"then beside the gcloud a link on PATH leads to", []string{"gcloud", "home", "package"}, "gcloud"},
		{"then the home directory", []string{"home", "package"}, "home"},
		{"then the distribution's package", []string{"package"}, "package"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.java("jdk", "11")
			m.env["JAVA_HOME"] = m.path("jdk")
			for _, root := range tc.jars {
				jar := m.jar(root, 55)
				if root == "named" {
					m.env[jarVariable] = jar
				}
			}
			got, err := m.find(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if want := m.jarPath(tc.want); got.Jar != want {
				t.Errorf("found %s, want %s", got.Jar, want)
			}
		})
	}
}

func TestFindTakesAJavaThatIsNewEnough(t *testing.T) {
	for _, tc := range []struct {
		name         string
		class        uint16 // of the jar: 55 is Java 11, 65 is Java 21
		home, onPath string // the versions there; "": none, "broken": does not run
		want         string // where the one taken is; "": none
		says         string // in the error
	}{
		{"JAVA_HOME before PATH", 55, "17", "21", "home", ""},
		{"PATH where JAVA_HOME is unset", 55, "", "11", "path", ""},
		{"PATH where JAVA_HOME is too old", 65, "17", "21", "path", ""},
		{"PATH where JAVA_HOME is broken", 55, "broken", "17", "path", ""},
		{"none where there is none", 55, "", "", "", "needs a Java runtime, version 11 or later"},
		{"none where it is broken", 55, "", "broken", "", "version 11 or later"},
		{"none where it is Java 8", 55, "1.8", "", "", "is Java 8"},
		{"none older than the jar asks for", 65, "", "17", "", "version 21 or later, in JAVA_HOME or on PATH; "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.jar("package", tc.class)
			if tc.home != "" {
				m.env["JAVA_HOME"] = m.path("home-java")
				m.java("home-java", tc.home)
			}
			if tc.onPath != "" {
				m.link(m.java("path-java", tc.onPath), "bin/java")
			}
			got, err := m.find(t.Context())
			if tc.want == "" {
				if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("error %v, want ErrNotFound that says %q", err, tc.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := m.path(tc.want + "-java/bin/java"); got.Java != want {
				t.Errorf("found %s, want %s", got.Java, want)
			}
		})
	}
}

func TestFindSaysHowToInstallAMissingJar(t *testing.T) {
	m := newMachine(t)
	m.link(m.java("jdk", "17"), "bin/java")
	_, err := m.find(t.Context())
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "gcloud components install") {
		t.Errorf("error %v, want ErrNotFound that says how to install it", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q, want one line", err)
	}
}

func TestFindDoesNotReplaceANamedJarThatCannotBeUsed(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(m *machine) string
		says string
	}{
		{"it does not exist", func(m *machine) string { return m.path("nowhere.jar") }, "no such file"},
		{"it is a directory", func(m *machine) string { return m.path("package") }, "not a regular file"},
		{"it is no archive", func(m *machine) string { return m.file("text.jar", "text", 0o600) }, "zip"},
		{"it is another program's", func(m *machine) string {
			return m.archive("other.jar", "org/other/Main.class", []byte("?"))
		}, "is not the Firestore emulator"},
		{"its class is none", func(m *machine) string {
			return m.archive("broken.jar", strings.ReplaceAll(mainClass, ".", "/")+".class", []byte("not a class"))
		}, "is not a Java class"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.link(m.java("jdk", "17"), "bin/java")
			m.jar("package", 55) // a good one, further down the list
			m.env[jarVariable] = tc.make(m)
			_, err := m.find(t.Context())
			if err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that says %q and is not ErrNotFound", err, tc.says)
			}
		})
	}
}

func TestFindHidesTheEmulatorWhenToldTo(t *testing.T) {
	for value, hidden := range map[string]bool{"1": true, "yes": true, "0": false, "": false} {
		m := newMachine(t)
		m.link(m.java("jdk", "17"), "bin/java")
		m.env[jarVariable] = m.jar("named", 55)
		m.env[hideVariable] = value
		if _, err := m.find(t.Context()); errors.Is(err, ErrNotFound) != hidden {
			t.Errorf("with %s=%q: error %v, want hidden: %v", hideVariable, value, err, hidden)
		}
	}
}

func TestFindDoesNotTakeAnInterruptedLookForAMissingJava(t *testing.T) {
	m := newMachine(t)
	m.jar("package", 55)
	m.link(m.java("jdk", "17"), "bin/java")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("no longer wanted")
	cancel(gone)
	if _, err := m.find(ctx); errors.Is(err, ErrNotFound) || !errors.Is(err, gone) {
		t.Errorf("error %v, want the cause and not ErrNotFound", err)
	}
}

func TestFindRunsNoProgramFromARelativePATH(t *testing.T) {
	m := newMachine(t)
	m.jar("package", 55)
	m.link(m.java("jdk", "17"), "bin/java")
	t.Chdir(m.root)
	m.env["PATH"] = ".:bin:"
	if got, err := m.find(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("found %s, error %v, want ErrNotFound", got.Java, err)
	}
}

// A machine is a directory tree and an environment to find an emulator on.
type machine struct {
	finder
	t    *testing.T
	root string
	env  map[string]string
}

// newMachine returns a machine without emulator or Java, on which CLOUDSDK_ROOT_DIR,
// gcloud on PATH, the home directory and the package each lead to a root of their own.
func newMachine(t *testing.T) *machine {
	root, err := filepath.EvalSymlinks(t.TempDir()) // a link on macOS
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, root: root, env: map[string]string{}}
	m.finder = finder{
		getenv:   func(name string) string { return m.env[name] },
		home:     m.path("home"),
		packages: []string{m.path("empty"), m.path("package")},
	}
	m.env["CLOUDSDK_ROOT_DIR"] = m.path("sdk")
	m.env["PATH"] = m.path("nowhere") + string(filepath.ListSeparator) + m.path("bin")
	m.link(m.file("gcloud/bin/gcloud", "", 0o700), "bin/gcloud")
	return m
}

func (m *machine) path(p string) string { return filepath.Join(m.root, p) }

func (m *machine) jarPath(root string) string {
	if root == "home" {
		root = "home/google-cloud-sdk"
	}
	return m.path(root + "/platform/cloud-firestore-emulator/cloud-firestore-emulator.jar")
}

// jar makes an emulator's jar of the given class file version.
func (m *machine) jar(root string, version uint16) string {
	class := []byte{0xCA, 0xFE, 0xBA, 0xBE, 0, 0, byte(version >> 8), byte(version)}
	rel, err := filepath.Rel(m.root, m.jarPath(root))
	m.check(err)
	return m.archive(rel, strings.ReplaceAll(mainClass, ".", "/")+".class", class)
}

// java makes a runtime of the given version, or one that does not run.
func (m *machine) java(home, version string) string {
	script := fmt.Sprintf("#!/bin/sh\necho '    java.home = %s' >&2\necho '    java.specification.version = %s' >&2\n",
		m.path(home), version)
	if version == "broken" {
		script = "#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n"
	}
	return m.file(home+"/bin/java", script, 0o700)
}

func (m *machine) archive(path, name string, content []byte) string {
	var b strings.Builder
	z := zip.NewWriter(&b)
	w, err := z.Create(name)
	m.check(err)
	_, err = w.Write(content)
	m.check(err)
	m.check(z.Close())
	return m.file(path, b.String(), 0o600)
}

func (m *machine) file(path, content string, mode os.FileMode) string {
	m.check(os.MkdirAll(filepath.Dir(m.path(path)), 0o700))
	m.check(os.WriteFile(m.path(path), []byte(content), mode))
	return m.path(path)
}

func (m *machine) link(target, path string) {
	m.check(os.MkdirAll(filepath.Dir(m.path(path)), 0o700))
	m.check(os.Symlink(target, m.path(path)))
}

func (m *machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}
