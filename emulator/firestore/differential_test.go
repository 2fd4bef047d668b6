package firestore_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

// outcome is what a caller sees of a call: its results without times, or an error.
type outcome struct {
	results string
	err     error
}

func (o outcome) code() codes.Code { return status.Code(o.err) }

// call is a request that both servers get.
type call struct {
	request proto.Message
	send    func(*rig) outcome
}

// difference is one that stays, with its reason.
type difference struct {
	why string
	is  func(c call, google, embedded outcome) bool
}

var explained = []difference{
	refusal("what the package does not implement is UNIMPLEMENTED", "code = Unimplemented", nil),
	refusal("a commit cannot name documents of another database", "is not in database", nil),
	refusal("no document has an id of more than 1,500 bytes: reads refuse it too", "an id has", nil),
	refusal("arrays hold no arrays or vectors, also not by transforms", "an array cannot hold", transforms),
	refusal("__name__ is no field, but Google's emulator makes one called __key__", "is not a field", transforms),
	refusal("transforms have the same paths as masks", "field path", transforms),
	refusal("fields that the mask leaves out have the same limits", "a value has", masked),
	refusal("fields that the mask leaves out have the same limits", "a field name is empty", masked),
	refusal("fields that the mask leaves out have the same limits", "a field path has", masked),
	refusal("fields that the mask leaves out have the same limits", "nest deeper", masked),
	refusal("an unknown operator is refused with null too", "the unknown operator", nil),
	refusal("maps of an unknown type are refused in queries too", `"__type__" is reserved`, nil),
	refusal("vectors have no NaN, also in queries", "a vector has a dimension", nil),
	refusal("an order by the name twice is invalid before it is a failed precondition", "twice", nil),
	{"the aliases and the number of counts are not checked", func(c call, _, _ outcome) bool {
		request, count := c.request.(*firestorepb.RunAggregationQueryRequest)
		list := request.GetStructuredAggregationQuery().GetAggregations()
		return count && (len(list) != 1 || list[0].Alias != "n0")
	}},
	{"a rollback frees what there is, and is never refused", func(c call, _, _ outcome) bool {
		_, rollback := c.request.(*firestorepb.RollbackRequest)
		return rollback
	}},
	{"an overflow of integers wraps around", func(c call, _, _ outcome) bool {
		return strings.Contains(prototext.Format(c.request), "increment") &&
			strings.Contains(prototext.Format(c.request), fmt.Sprint(math.MaxInt64))
	}},
	{"the conditions of a second write of a document see the first", func(c call, _, _ outcome) bool {
		commit, _ := c.request.(*firestorepb.CommitRequest)
		written := map[string]bool{}
		for _, w := range commit.GetWrites() {
			name := w.GetUpdate().GetName() + w.GetDelete()
			if written[name] {
				return true
			}
			written[name] = true
		}
		return false
	}},
}

// refusal is a difference where the embedded server refuses a call with this text, and Google's emulator does
// not or finds another reason. It is one of commits with such a write, or of all calls.
func refusal(why, text string, such func(*firestorepb.Write) bool) difference {
	return difference{why, func(c call, _, embedded outcome) bool {
		commit, _ := c.request.(*firestorepb.CommitRequest)
		return embedded.err != nil && strings.Contains(embedded.err.Error(), text) &&
			(such == nil || slices.ContainsFunc(commit.GetWrites(), such))
	}}
}

func transforms(w *firestorepb.Write) bool { return len(w.GetUpdateTransforms()) > 0 }

func masked(w *firestorepb.Write) bool { return w.GetUpdateMask() != nil }

// TestDifferential sends the same random calls, many of them invalid, to both servers. It prints its seed.
// DIFFERENTIAL_SEED and DIFFERENTIAL_CALLS change them.
func TestDifferential(t *testing.T) {
	host := emulatortest.Google(t)
	seed, n := number(t, "DIFFERENTIAL_SEED", 1), number(t, "DIFFERENTIAL_CALLS", 1000)
	server := firestore.NewServer(firestore.Options{})
	t.Cleanup(server.Close)
	project := emulatortest.Project()
	google, embedded := rigOf(t, dialHost(t, host), project), rigOf(t, dialServer(t, server), project)
	c := &chooser{Rand: rand.New(rand.NewPCG(uint64(seed), 0)), db: google.database}

	calls := c.corpus()
	for range n {
		calls = append(calls, c.call())
	}
	codesSeen, reasons := map[codes.Code]int{}, map[string]int{}
	for i, call := range calls {
		want, got := call.send(google), call.send(embedded)
		codesSeen[want.code()]++
		if want.code() == got.code() && want.results == got.results {
			continue
		}
		why := explanation(call, want, got)
		reasons[why]++
		if why == "" {
			t.Errorf("call %d of seed %d: %.3000s\nGoogle's emulator: %.800s %v\nembedded: %.800s %v",
				i, seed, prototext.Format(call.request), want.results, want.err, got.results, got.err)
		}
	}

	t.Logf("seed %d: Google's emulator answered %v; differences: %v", seed, codesSeen, reasons)
	if codesSeen[codes.OK] < n/5 || codesSeen[codes.InvalidArgument] < n/5 {
		t.Errorf("%v: want many calls that succeed, and many that are refused", codesSeen)
	}
}

func explanation(c call, google, embedded outcome) string {
	for _, e := range explained {
		if e.is(c, google, embedded) {
			return e.why
		}
	}
	return ""
}

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	if os.Getenv(variable) == "" {
		return otherwise
	}
	return must.Get(strconv.Atoi(os.Getenv(variable)))(t)
}

// described returns a document's id and fields. Times of commits are all the same.
func described(d *firestorepb.Document) string {
	parts := []string{d.GetName()[strings.LastIndex(d.GetName(), "/")+1:]}
	for _, name := range slices.Sorted(maps.Keys(d.GetFields())) {
		v := proto.CloneOf(d.Fields[name])
		for _, inner := range []*value{v, v.GetMapValue().GetFields()["x"]} {
			if inner.GetTimestampValue().GetSeconds() > 1<<30 {
				inner.ValueType = textValue("the time of the commit").ValueType
			}
		}
		text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(v)
		parts = append(parts, fmt.Sprintf("%s=%q", name, text))
	}
	return strings.Join(parts, " ")
}

func (r *rig) sendQuery(request *firestorepb.RunQueryRequest) outcome {
	answers, err := r.query(request)
	var found []string
	for _, a := range answers {
		if a.Document != nil {
			found = append(found, described(a.Document))
		}
	}
	return outcome{strings.Join(found, "\n"), err}
}

func (r *rig) sendCount(request *firestorepb.RunAggregationQueryRequest) outcome {
	stream, err := r.raw.RunAggregationQuery(r.ctx, request)
	if err != nil {
		return outcome{err: err}
	}
	answers, err := drain(stream.Recv)
	var found []string
	for _, a := range answers {
		for _, alias := range slices.Sorted(maps.Keys(a.GetResult().GetAggregateFields())) {
			found = append(found, fmt.Sprint(alias, a.Result.AggregateFields[alias].GetIntegerValue()))
		}
	}
	return outcome{fmt.Sprint(found), err}
}

func (r *rig) sendGet(request *firestorepb.BatchGetDocumentsRequest) outcome {
	answers, err := r.batchGet(request)
	var found []string
	for _, a := range answers {
		found = append(found, a.GetMissing()+described(a.GetFound()))
	}
	slices.Sort(found) // the order is not promised
	return outcome{strings.Join(found, "\n"), err}
}

// sendCommit sends the writes with the preconditions' times moved from the documents' times, and reads what
// they left behind. Half of the documents exist before.
func (r *rig) sendCommit(request *firestorepb.CommitRequest, shift []int64) outcome {
	after := &firestorepb.BatchGetDocumentsRequest{Database: r.database}
	var before []*firestorepb.Write
	for i := range writtenDocuments {
		after.Documents = append(after.Documents, r.name(fmt.Sprint("w/", i)))
		before = append(before, &firestorepb.Write{Operation: &firestorepb.Write_Delete{Delete: after.Documents[i]}})
		if i%2 == 0 {
			before = append(before, putFields(after.Documents[i], fields{
				"a": integerValue(1), "b": textValue("x"), "m": mapValue(fields{"x": integerValue(1)}),
				"n": doubleValue(1), "tags": arrayValue(integerValue(1), textValue("x")),
			}))
		}
	}
	r.ok(r.commit(nil, before...))

	request = proto.CloneOf(request)
	for i, w := range request.Writes {
		if condition, dated := w.GetCurrentDocument().GetConditionType().(*firestorepb.Precondition_UpdateTime); dated {
			name := w.GetUpdate().GetName() + w.GetDelete()
			answers, _ := r.readName(name)
			if len(answers) > 0 && answers[0].GetFound() != nil {
				condition.UpdateTime = proto.CloneOf(answers[0].GetFound().UpdateTime)
				condition.UpdateTime.Seconds += shift[i]
			}
		}
	}
	_, err := r.raw.Commit(r.ctx, request)
	left := r.sendGet(after)
	return outcome{left.results, err}
}
