package adopt

import (
	"fmt"
	"slices"
	"strings"
)

// What words in a column of states mean, in lower case and without what separates words.
const (
	wordsPending  = "pending new created ready queued unsent unpublished waiting open scheduled"
	wordsFailed   = "failed error retry retrying retryable"
	wordsProgress = "inprogress processing locked sending publishing running active claimed"
	wordsSent     = "sent published done processed delivered completed complete success succeeded dispatched"
	wordsDead     = "deadletter deadlettered dead dlq discarded abandoned poisoned givenup cancelled canceled rejected"
)

// handedWord is the value that a copied row gets where the team's column takes any text.
const handedWord = "postrider"

// status maps the team's own words: those of the type, and those that rows have now.
func (t *Table) status(found func(string) ([]string, error)) (Mapping, error) {
	m := t.common(LayoutStatus)
	c, ok := t.find(statusNames, Text, Enum, Number)
	if !ok {
		return m, t.refuse(UnknownLayout, "leave --layout out, or write a mapping: --print-mapping prints one to start from", "the layout is not %s: the column status is missing", LayoutStatus)
	}
	words := slices.Clone(c.Words)
	if len(words) == 0 {
		var err error
		if words, err = found(c.Name); err != nil {
			return m, err
		}
	}
	if c.Default != "" && !slices.Contains(words, c.Default) {
		words = append(words, c.Default)
	}
	s := &State{Column: c.Name, LockedUntil: t.from(lockNames, Time, LocalTime).Column, SentAt: t.from(sentNames, Time, LocalTime).Column, Attempts: t.from(attemptNames, Number).Column, Error: t.from(errorNames, Text).Column}
	m.State = s
	failed, unknown := s.sort(words)
	if i := slices.Index(unknown, c.Default); i >= 0 { // what a new row has is not sent yet
		s.Pending, unknown = append(s.Pending, c.Default), slices.Delete(unknown, i, i+1)
	}
	_, again := t.find("nextattemptat nextattempt nextretryat retryat", Time, LocalTime)
	switch {
	case len(s.Dead) > 0 || again:
		s.Pending = append(s.Pending, failed...)
	case len(failed) > 0:
		unknown = append(unknown, failed...) // tried again, or given up?
	}
	s.Handed = s.handed(c)
	if len(unknown) > 0 {
		quoted := make([]string, len(unknown))
		for i, w := range unknown {
			quoted[i] = fmt.Sprintf("%q", w)
		}
		return m, t.refuse(UnknownLayout, "write a mapping: `postrider adopt "+t.Full()+" --print-mapping` prints one to start from, and --mapping FILE takes it",
			"the meaning of %s in column %s is unknown: pending, in_progress, sent or dead", strings.Join(quoted, ", "), c.Name)
	}
	if len(s.Pending) == 0 {
		return m, t.refuse(UnknownLayout, "name it in a mapping: --print-mapping prints one to start from",
			"no row has a value of column %s that means pending, so the team's word for it is unknown", c.Name)
	}
	return m, nil
}

// sort puts each word where it belongs.
func (s *State) sort(words []string) (failed, unknown []string) {
	for _, w := range words {
		is := func(list string) bool { return slices.Contains(strings.Fields(list), plain(w)) }
		switch {
		case plain(w) == handedWord:
		case is(wordsPending):
			s.Pending = append(s.Pending, w)
		case is(wordsProgress):
			s.InProgress = append(s.InProgress, w)
		case is(wordsSent):
			s.Sent = append(s.Sent, w)
		case is(wordsDead):
			s.Dead = append(s.Dead, w)
		case is(wordsFailed):
			failed = append(failed, w)
		default:
			unknown = append(unknown, w)
		}
	}
	return failed, unknown
}

// handed is a word of its own, in the team's way of writing, or, in an enum without it, that of a sent row.
func (s *State) handed(c Column) string {
	for _, w := range c.Words {
		if plain(w) == handedWord {
			return w
		}
	}
	if len(c.Words) > 0 && len(s.Sent) > 0 {
		return s.Sent[0]
	}
	for _, w := range s.Pending {
		switch {
		case w == strings.ToUpper(w):
			return strings.ToUpper(handedWord)
		case w[:1] == strings.ToUpper(w[:1]):
			return "Postrider"
		}
	}
	return handedWord
}
