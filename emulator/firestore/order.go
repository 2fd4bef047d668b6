package firestore

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// classOf returns the class of a value. In Firestore's order a value of a lower class sorts
// before every value of a higher one.
func classOf(v *value) int {
	switch v.GetValueType().(type) {
	case *firestorepb.Value_BooleanValue:
		return 1
	case *firestorepb.Value_IntegerValue, *firestorepb.Value_DoubleValue:
		return 2
	case *firestorepb.Value_TimestampValue:
		return 3
	case *firestorepb.Value_StringValue:
		return 4
	case *firestorepb.Value_BytesValue:
		return 5
	case *firestorepb.Value_ReferenceValue:
		return 6
	case *firestorepb.Value_GeoPointValue:
		return 7
	case *firestorepb.Value_ArrayValue:
		return 8
	case *firestorepb.Value_MapValue:
		return 9
	}
	return 0 // null
}

// compareValues is Firestore's total order. Integers and doubles compare by
// numeric value, so that 1 and 1.0 are equal.
func compareValues(a, b *value) int {
	if c := cmp.Compare(classOf(a), classOf(b)); c != 0 {
		return c
	}

	switch a.GetValueType().(type) {
	case *firestorepb.Value_BooleanValue:
		// "false" < "true"
		return cmp.Compare(strconv.FormatBool(a.GetBooleanValue()), strconv.FormatBool(b.GetBooleanValue()))
	case *firestorepb.Value_IntegerValue, *firestorepb.Value_DoubleValue:
		return compareNumbers(a, b)
	case *firestorepb.Value_TimestampValue:
		return a.GetTimestampValue().AsTime().Compare(b.GetTimestampValue().AsTime())
	case *firestorepb.Value_StringValue:
		return strings.Compare(a.GetStringValue(), b.GetStringValue())
	case *firestorepb.Value_BytesValue:
		return bytes.Compare(a.GetBytesValue(), b.GetBytesValue())
	case *firestorepb.Value_ReferenceValue:
		return compareNames(a.GetReferenceValue(), b.GetReferenceValue())
	case *firestorepb.Value_GeoPointValue:
		x, y := a.GetGeoPointValue(), b.GetGeoPointValue()
		return cmp.Or(cmp.Compare(x.GetLatitude(), y.GetLatitude()), cmp.Compare(x.GetLongitude(), y.GetLongitude()))
	case *firestorepb.Value_ArrayValue:
		return slices.CompareFunc(a.GetArrayValue().GetValues(), b.GetArrayValue().GetValues(), compareValues)
	case *firestorepb.Value_MapValue:
		return compareMaps(a.GetMapValue().GetFields(), b.GetMapValue().GetFields())
	}
	return 0
}

// compareNames orders resource names by their segments.
func compareNames(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// compareMaps compares entry by entry in the order of the keys: first the keys,
// then their values; the map that ends first is the smaller.
func compareMaps(a, b fields) int {
	x, y := slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))
	for i := range min(len(x), len(y)) {
		if c := cmp.Or(cmp.Compare(x[i], y[i]), compareValues(a[x[i]], b[y[i]])); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

func compareNumbers(a, b *value) int {
	i, aInt := a.GetValueType().(*firestorepb.Value_IntegerValue)
	j, bInt := b.GetValueType().(*firestorepb.Value_IntegerValue)
	if aInt && bInt {
		return cmp.Compare(i.IntegerValue, j.IntegerValue)
	}
	return cmp.Compare(asDouble(a), asDouble(b)) // NaN first, -0 = 0
}

// asDouble returns a number as a double. Of an integer and a double, v is one; the other is 0.
func asDouble(v *value) float64 { return float64(v.GetIntegerValue()) + v.GetDoubleValue() }

func isNaN(v *value) bool { return math.IsNaN(v.GetDoubleValue()) }

func isNull(v *value) bool { return classOf(v) == 0 }
