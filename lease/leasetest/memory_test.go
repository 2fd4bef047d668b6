package leasetest_test

import (
	"testing"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

func TestRun_Memory(t *testing.T) {
	leasetest.Run(t, suite(func() lease.Store[job] { return &lease.Memory[job]{} }))
}
