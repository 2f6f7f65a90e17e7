package main

import "errors"

func openSQLite(*settings, string) (*opened, error) { return nil, errors.New("no sqlite in this build") }
func openNATS(*settings) (*openedSink, error)        { return nil, errors.New("no nats in this build") }
