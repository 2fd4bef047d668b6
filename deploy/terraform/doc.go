// Package terraform holds the test that evaluates the module's settings with Terraform.
// It is a package of its own so that a machine without Terraform shows:
//
//	ok  	taskguard/deploy/terraform	0.01s [no tests to run]
//
// With REQUIRE_TERRAFORM set (to anything but "" or "0") its absence is a failure
// instead; TASKGUARD_NO_TERRAFORM hides it. The other tests of the module, in deploy/,
// need no Terraform: they compare its files and testdata/settings.json, which this
// test keeps true.
package terraform
