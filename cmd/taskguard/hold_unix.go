//go:build unix && !linux

package main

import "syscall"

func holdAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
