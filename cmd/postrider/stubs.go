package main

import (
	"errors"
)

func openSQLite(*settings, string) (*opened, error) {
	return nil, errors.New("no sqlite in this build")
}
