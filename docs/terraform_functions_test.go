package docs

import (
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	"sigs.k8s.io/yaml"
)

// terraformFunctions are those of Terraform's that the module uses. Most are the
// ones that Terraform itself takes from the same library.
func terraformFunctions() map[string]function.Function {
	return map[string]function.Function{
		"alltrue":         predicate(alltrue),
		"coalesce":        stdlib.CoalesceFunc,
		"concat":          stdlib.ConcatFunc,
		"endswith":        ofTexts(strings.HasSuffix),
		"file":            ofText(readFile),
		"floor":           stdlib.FloorFunc,
		"format":          stdlib.FormatFunc,
		"join":            stdlib.JoinFunc,
		"jsondecode":      stdlib.JSONDecodeFunc,
		"jsonencode":      stdlib.JSONEncodeFunc,
		"keys":            stdlib.KeysFunc,
		"length":          stdlib.LengthFunc,
		"lookup":          stdlib.LookupFunc,
		"merge":           stdlib.MergeFunc,
		"min":             stdlib.MinFunc,
		"regexall":        stdlib.RegexAllFunc,
		"replace":         function.New(&replaceSpec),
		"reverse":         stdlib.ReverseListFunc,
		"setintersection": stdlib.SetIntersectionFunc,
		"setproduct":      stdlib.SetProductFunc,
		"setunion":        stdlib.SetUnionFunc,
		"split":           stdlib.SplitFunc,
		"tostring":        stdlib.MakeToFunc(cty.String),
		"toset":           stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
		"values":          stdlib.ValuesFunc,
		"yamldecode":      ofText(yamlDecode),
	}
}

// replaceSpec is of replace, which takes what stands between slashes for an expression.
var replaceSpec = function.Spec{
	Params: []function.Parameter{{Name: "text", Type: cty.String}, {Name: "old", Type: cty.String}, {Name: "new", Type: cty.String}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if old := args[1].AsString(); len(old) > 1 && strings.HasPrefix(old, "/") && strings.HasSuffix(old, "/") {
			return stdlib.RegexReplace(args[0], cty.StringVal(old[1:len(old)-1]), args[2])
		}
		return stdlib.Replace(args[0], args[1], args[2])
	},
}

func readFile(path string) (cty.Value, error) {
	s, err := readFolder(path)
	return cty.StringVal(s), err
}

func yamlDecode(text string) (cty.Value, error) {
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return cty.NilVal, err
	}
	return stdlib.JSONDecode(cty.StringVal(string(data)))
}

func alltrue(list cty.Value) bool {
	for _, v := range list.Elements() {
		if v.False() {
			return false
		}
	}
	return true
}

func ofText(f func(string) (cty.Value, error)) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "text", Type: cty.String}},
		Type:   function.StaticReturnType(cty.DynamicPseudoType),
		Impl:   func(args []cty.Value, _ cty.Type) (cty.Value, error) { return f(args[0].AsString()) },
	})
}

func ofTexts(f func(a, b string) bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "a", Type: cty.String}, {Name: "b", Type: cty.String}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(f(args[0].AsString(), args[1].AsString())), nil
		},
	})
}

func predicate(f func(cty.Value) bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "list", Type: cty.List(cty.Bool)}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl:   func(args []cty.Value, _ cty.Type) (cty.Value, error) { return cty.BoolVal(f(args[0])), nil },
	})
}
