// Package mutants is a list of seeded bugs, each a change of a few words in one
// file with the name of the test that must fail because of it: a proof that the
// tests test. It consists of tests alone.
//
// go test checks the list itself: each text to be replaced is found exactly
// once, and each test exists. With MUTANTS=1 it makes every bug and runs its
// test; the tree is never written to:
//
//	MUTANTS=1 go test -count=1 -v -timeout 30m ./docs/mutants
//	MUTANTS=1 go test -count=1 -v ./docs/mutants -run '/bugs/.*token'
//
// Each function with a bug begins with a copy of its body that has the bug, and
// the variable MUTANT is the number of the bug that is made, so that each package
// is compiled once. Only bugs outside of functions are compiled one by one. A bug
// that makes its test hang is not caught. internal/proof must find some bugs by
// itself, and name the sequence or the seed that shows them. All tests run on
// embedded servers, nearly all in virtual time.
//
// With MUTANTS_GENERATED=1 it makes mutants of each package of the product, which its
// tests must catch, except for the list in survivors.txt:
//
//	make mutants-generated RUN=/internal_taskauth
package mutants
