package main

import (
	"context"
	"errors"

	"github.com/postrider/postrider/broker"
)

func openSQLite(*settings, string) (*opened, error) { return nil, errors.New("no sqlite in this build") }

type openedSource struct {
	broker.Source
	close func()
}

func openSource(context.Context, *settings, string, string) (*openedSource, error) {
	return nil, errors.New("no source in this build")
}
