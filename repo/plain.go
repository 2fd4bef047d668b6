package repo

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"google.golang.org/genproto/googleapis/type/latlng"
)

// Plain returns the JSON form of a document's value, as analyzers get it. It encodes the
// types that JSON lacks as follows: a timestamp as RFC 3339, bytes as base64, NaN and the
// infinities as the strings "NaN", "Infinity" and "-Infinity", a reference as its full
// path, a geo point as {"latitude", "longitude"}, and a vector as an array of numbers. Plain
// replaces the values of these types in v, since a copy of v may be large.
func Plain(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(plain(v)); err != nil {
		return nil, fmt.Errorf("repo: encode value: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = plain(e)
		}
	case []any:
		for i, e := range v {
			v[i] = plain(e)
		}

	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case float64:
		switch {
		case math.IsNaN(v):
			return "NaN"
		case math.IsInf(v, 1):
			return "Infinity"
		case math.IsInf(v, -1):
			return "-Infinity"
		}
	case *latlng.LatLng:
		return map[string]any{"latitude": v.GetLatitude(), "longitude": v.GetLongitude()}
	}
	return v // null, booleans, numbers and strings
}
