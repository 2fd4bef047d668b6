package worker

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A form that is sent again has another boundary.
func TestFingerprint(t *testing.T) {
	form := func(boundary string, replaced ...string) string {
		const parts = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n" +
			"--B\r\nContent-Disposition: form-data; name=\"b\"; filename=\"b.txt\"\r\n" +
			"Content-Type: text/csv\r\n\r\n2\r\n" +
			"--B--\r\n"
		return strings.ReplaceAll(strings.NewReplacer(replaced...).Replace(parts), "--B", "--"+boundary)
	}
	const data = "multipart/form-data; boundary="
	type sent struct{ contentType, body string }
	first := sent{data + "B", form("B")}
	for name, c := range map[string]struct {
		first, again sent
		same         bool
	}{
		"a new boundary":           {first, sent{data + "C", form("C")}, true},
		"its type otherwise":       {first, sent{`Multipart/Form-Data;BOUNDARY="C"`, form("C")}, true},
		"other content":            {first, sent{data + "C", form("C", "\r\n2", "\r\n3")}, false},
		"another name":             {first, sent{data + "C", form("C", `"b"`, `"c"`)}, false},
		"another file":             {first, sent{data + "C", form("C", "b.txt", "c.txt")}, false},
		"another type of a part":   {first, sent{data + "C", form("C", "csv", "tsv")}, false},
		"content changed places":   {first, sent{data + "C", form("C", "\r\n1", "\r\n2", "\r\n2", "\r\n1")}, false},
		"another type of form":     {first, sent{"multipart/mixed; boundary=C", form("C")}, false},
		"another parameter":        {first, sent{data + "C; charset=utf-8", form("C")}, false},
		"without its end":          {first, sent{data + "C", form("C", "--B--\r\n", "")}, false},
		"in no form":               {sent{data + "D", form("B")}, sent{data + "D", form("B", "csv", "tsv")}, false},
		"not as a form":            {sent{"text/plain", form("B")}, sent{"text/plain", form("C")}, false},
		"text, its type otherwise": {sent{"text/plain; a=b", "x"}, sent{"TEXT/plain;a=b", "x"}, true},
		"of no type":               {sent{"a b", "x"}, sent{"a b", "x"}, true},
		"of another no type":       {sent{"a b", "x"}, sent{"A b", "x"}, false},
	} {
		media, sum := fingerprint(c.first.contentType, []byte(c.first.body))
		again, sumAgain := fingerprint(c.again.contentType, []byte(c.again.body))
		if same := media == again && sum == sumAgain; same != c.same {
			t.Errorf("%s: the same %v; %s and %s", name, same, media, again)
		}
	}
}

// A handler adds to the headers that outer handlers have set. These set their own again for the replay.
func TestStoredHeaders(t *testing.T) {
	h := &idempotent{IdempotentOptions: IdempotentOptions{Headers: []string{"x-chosen"}}}
	h.Stored = func(int) bool { return true }
	for name, c := range map[string]struct{ header, first, replayed string }{ // outer handlers set 1, then 2
		"of the handler":       {"Location", "a b", "a b"},
		"for caches":           {"Etag", "a", "a"},
		"of CORS":              {"Access-Control-Allow-Origin", "a", "a"},
		"of CORS, with cookie": {"Access-Control-Allow-Credentials", "a", "a"},
		"of CORS, for scripts": {"Access-Control-Expose-Headers", "a", "a"},
		"chosen":               {"X-Chosen", "1 a", "a"},
		"not chosen":           {"Set-Cookie", "1 a", "2"},
		"of an outer handler":  {"Link", "1", "2"},
		"added":                {"Link", "1 a", "a"},
		"replaced":             {"Link", "a", "a"},
		"Vary, which is added": {"Vary", "1 a", "2 a"},
	} {
		outer, again := http.Header{c.header: {"1"}}, httptest.NewRecorder()
		live := StoredResponse{Status: http.StatusOK, Header: http.Header{c.header: strings.Fields(c.first)}}
		stored, err := h.stored(live, outer)
		again.Header().Set(c.header, "2")
		stored.send(again)
		if got := strings.Join(again.Header()[c.header], " "); err != nil || got != c.replayed {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.replayed)
		}
	}
}
