package orchestrator

import (
	"regexp"
	"strconv"
	"strings"
)

// path is the place of a value in a result. The zero path is the result itself.
type path struct{ steps []step }

// step leads to a field of a map or, if field is false, to an element of an array.
type step struct {
	field bool
	name  string
	index int
}

// newPath returns the path of the result, with room for MaxDepth steps.
func newPath() path { return path{make([]step, 0, MaxDepth+1)} }

// with returns p with one more step. It may overwrite the path that an earlier call
// returned, as only one is in use at a time. Copying the steps would take most of the time
// of reading a result.
func (p path) with(s step) path { return path{append(p.steps, s)} }

func (p path) field(name string) path { return p.with(step{field: true, name: name}) }
func (p path) index(i int) path       { return p.with(step{index: i}) }

// bytes returns the length of the path by Firestore's rule.
func (p path) bytes() int {
	n := len(root)
	for _, s := range p.steps {
		if s.field {
			n += 1 + len(s.name)
		}
	}
	return n
}

// String returns the path as in a program, "result.items[3]". Names that are not
// identifiers are in brackets and quotes, and long ones are cut.
func (p path) String() string {
	var b strings.Builder
	b.WriteString(root)
	for _, s := range p.steps {
		switch {
		case !s.field:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case identifier.MatchString(s.name):
			b.WriteString("." + s.name)
		case len(s.name) > maxShownName:
			b.WriteString("[" + strconv.Quote(cutHead(s.name, maxShownName)+"…") + "]")
		default:
			b.WriteString("[" + strconv.Quote(s.name) + "]")
		}
	}
	return b.String()
}

const maxShownName = 64

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
