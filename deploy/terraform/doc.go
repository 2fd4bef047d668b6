// Package terraform holds the test that evaluates the module's settings with Terraform. It
// runs if REQUIRE_TERRAFORM is set (to anything but "" or "0"). The other tests of the module,
// in deploy/, need no Terraform: they compare its files and testdata/settings.json, which this
// test keeps true.
package terraform
