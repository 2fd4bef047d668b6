// Package mutants makes mutants of each package of the product, small changes of its code,
// which its tests must catch, except for the list in survivors.txt: a proof that the tests
// test. It consists of tests alone.
//
// go test checks that each survivor of the list is a mutant of the present code. With
// MUTANTS_GENERATED=1 it makes every mutant and runs the tests that reach it, on embedded
// servers; the tree is never written to:
//
//	make mutants-generated RUN=/internal_taskauth
//
// All mutants of a package are compiled at once, and the variable MUTANT is the number of the
// active mutant. A mutant that makes a test hang is caught.
package mutants
