package worker

import (
	"math/big"
	"reflect"
	"testing"
	"time"
)

func TestEncodable(t *testing.T) {
	type list struct { // of itself, with all that is no obstacle
		Next   *list
		Any    any
		At     time.Time
		Number *big.Int
		Secret chan int `json:"-"`
		_      func()
	}
	type embedded struct{ list }
	type holder struct{ Reply chan int }
	for typ, want := range map[reflect.Type]bool{
		reflect.TypeFor[list]():                                 true,
		reflect.TypeFor[embedded]():                             true,
		reflect.TypeFor[map[time.Time]int]():                    true, // by their texts
		reflect.TypeFor[map[uint8]string]():                     true,
		reflect.TypeFor[chan int]():                             false,
		reflect.TypeFor[func()]():                               false,
		reflect.TypeFor[complex128]():                           false,
		reflect.TypeFor[*holder]():                              false,
		reflect.TypeFor[struct{ holder }]():                     false,
		reflect.TypeFor[struct{ Items []struct{ F func() } }](): false,
		reflect.TypeFor[map[string]complex64]():                 false,
		reflect.TypeFor[map[float64]int]():                      false,
	} {
		if err := encodable(typ, map[reflect.Type]bool{}); (err == nil) != want {
			t.Errorf("%v: %v", typ, err)
		}
	}
}
