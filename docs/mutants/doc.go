// Package mutants is a list of seeded bugs, each a change of a few words to one
// file, with the name of the one test that must fail because of it: a proof that
// the tests test. It consists of tests alone.
//
// go test checks the list itself: each text to be replaced is found exactly
// once, and each test exists. With MUTANTS=1 it makes every bug, in a copy of
// the file that the go command compiles in the file's place, and runs its test;
// the tree is never written to:
//
//	MUTANTS=1 go test -count=1 -v -timeout 30m ./docs/mutants
//	MUTANTS=1 go test -count=1 -v ./docs/mutants -run '/bugs/.*token'
//
// Some bugs are made twice: the second time explore or simulate must find it by
// itself, at the settings in the list whatever the environment says, and must
// name the sequence or the seed that shows it; that a figure was zero is not
// enough.
//
// A bug that does not compile, or makes its test hang, is an error of the list
// and not caught. All tests run on embedded servers, nearly all in virtual time.
//
// With MUTANTS_GENERATED=1 it makes mutants of whole packages, which those
// packages' own tests must catch, but for the list in survivors.txt. All of a
// package are compiled into one test binary, and the variable MUTANT makes one
// of them:
//
//	make mutants-generated RUN=/worker_taskauth
package mutants
