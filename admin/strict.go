package admin

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/store"
)

// StrictTopics lists the topics whose keys the outbox numbers, by name.
func StrictTopics(ctx context.Context, st store.Store) ([]store.StrictTopic, error) {
	s, err := strictKeys(st)
	if err != nil {
		return nil, err
	}
	return s.StrictTopics(ctx)
}

// SetStrict makes a topic strict, or plain again, and reports whether that
// changed it.
func SetStrict(ctx context.Context, st store.Store, req store.StrictRequest) (changed bool, err error) {
	s, err := strictKeys(st)
	if err != nil {
		return false, err
	}
	return s.SetStrict(ctx, req)
}

func strictKeys(st store.Store) (store.StrictKeys, error) {
	if s, ok := st.(store.StrictKeys); ok {
		return s, nil
	}
	return nil, fmt.Errorf("strict keys: %w: the store is %s; PostgreSQL has them", store.ErrUnsupported, st.Info().Name)
}
