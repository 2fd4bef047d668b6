//go:build unix

package leasetest_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// jsonFormat keeps a record and the time of its write as JSON.
type jsonFormat struct{}

type written struct {
	At  time.Time
	Job job
}

func (jsonFormat) Name(key string) (string, error) { return key, nil }

func (jsonFormat) Encode(_ string, j job, at time.Time) ([]byte, error) {
	return json.Marshal(written{at, j})
}

func (jsonFormat) Decode(_ string, data []byte, _ time.Time) (job, time.Time, error) {
	var w written
	err := json.Unmarshal(data, &w)
	return w.Job, w.At, err
}

// directory is a File with the path of its directory.
type directory struct {
	*lease.File[job]
	path string
}

func fileSuite() leasetest.Suite[job] {
	s := suite(nil)
	s.New = func(t testing.TB) lease.Store[job] {
		dir := t.TempDir()
		return directory{lease.NewFile(dir, "guard", jsonFormat{}), dir}
	}
	s.Create = func(t testing.TB, s lease.Store[job], key string) {
		c, err := s.Load(t.Context(), key, lease.OnlyLease)
		must.OK(t, err)
		if _, err = s.Swap(t.Context(), key, c, job{}); err != nil {
			t.Fatal(err)
		}
	}
	s.Delete = func(t testing.TB, s lease.Store[job], key string) {
		if err := os.Remove(filepath.Join(s.(directory).path, key)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return s
}

func TestRun_File(t *testing.T) {
	t.Run("in virtual time", func(t *testing.T) { leasetest.Run(t, fileSuite()) })
	t.Run("in real time", func(t *testing.T) {
		s := fileSuite()
		s.TTL, s.Bubble = 2*time.Second, false
		leasetest.Run(t, s)
	})
}
