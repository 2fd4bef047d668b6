package mutants

// room is a file and the bugs that can be made in it.
type room struct {
	file string
	bugs []bug
}

// bug is one change of a file, or a few at once, which compiles.
type bug struct {
	name     string   // what the program then does wrong
	old, new string   // old is in the file exactly once
	and      []string // old, new, … of the further changes
	pkg      string   // of the test; "" is the file's own
	env      []string // NAME=value, for the test
	test     string   // as go test -v names it, subtests and all
	says     string   // what it must say too, where it can fail for another reason
}

// The searches fail for want of figures too; these they say of a violation.
const (
	everyInterleaving = "TestNoInterleavingRunsTwiceOrLosesTheAnalysis"
	replayedStep      = "EXPLORE_REPLAY="
	manySeeds         = "TestManySeedsLoseNothingAndFinishEachOnce"
	replayedSeed      = "SIMULATE_SEED="
)

var someSeeds = []string{"SIMULATE_SEEDS=300"}

// rooms are all of the list.
func rooms() []room {
	var all []room
	for _, part := range [][]room{leaseRooms, repoRooms, workerRooms, taskauthRooms, siblingRooms} {
		all = append(all, part...)
	}
	return all
}
