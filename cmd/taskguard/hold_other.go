//go:build !unix

package main

import (
	"context"
	"errors"
)

func hold(context.Context, *call) error {
	return errors.New("needs process groups, which this system does not have")
}
