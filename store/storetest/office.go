package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func officeCases() []Case {
	return []Case{
		{
			Name: "office/complete", Run: officeComplete,
			Promise: "the office names the kind of its store, the version of its schema, and the reason for each missing ability",
		},
		{
			Name: "office/stops", Run: officeStops,
			Promise: "Info.SetStop is set exactly when the office keeps stopped destinations",
		},
		{
			Name: "office/holds", Run: officeHolds,
			Promise: "a pause request returns ErrUnsupported exactly when the office has no pauses",
		},
		{
			Name: "office/pipe", Run: officePipe,
			Promise: "the office opens another pipe of the same outbox with an office of its own",
		},
	}
}

func officeComplete(ctx context.Context, env Env) error {
	office := env.Office()
	if office.Admin == nil || office.Migrator == nil || office.Pipe == nil {
		return errors.New("Admin, Migrator or Pipe is nil: every store has them")
	}
	if name := env.Store().Info().Name; office.Kind != name {
		return fmt.Errorf("the office is of kind %q, the store of kind %q", office.Kind, name)
	}
	have, want, err := office.Migrator.SchemaVersion(ctx)
	if err != nil || have != office.Version || want != office.Version {
		return fmt.Errorf("the office makes version %d; found %d, wanted %d, error %w", office.Version, have, want, err)
	}
	for _, a := range ops.Abilities() {
		missing := (*ops.MissingError)(nil)
		switch err := office.Need(a); {
		case err == nil && !office.Has(a):
			return fmt.Errorf("%s is missing, but Need returns no error", a)
		case err != nil && (!errors.As(err, &missing) || !errors.Is(err, ops.ErrUnsupported) || missing.Ability != a):
			return fmt.Errorf("%s: Need returns %w", a, err)
		case err != nil && missing.Why == "":
			return fmt.Errorf("%s is missing without a reason", a)
		}
	}
	return nil
}

func officeStops(_ context.Context, env Env) error {
	if info := env.Store().Info(); (info.SetStop != nil) != env.Office().Has(ops.CanStop) {
		return fmt.Errorf("Info.SetStop is set: %v; the office keeps stops: %v", info.SetStop != nil, env.Office().Has(ops.CanStop))
	}
	return nil
}

func officeHolds(ctx context.Context, env Env) error {
	office := env.Office()
	_, err := office.Admin.Request(ctx, store.Act{Kind: store.ActPause, Key: "k", Actor: "ann", Reason: "test"})
	if office.Holds && err != nil || !office.Holds && !errors.Is(err, ops.ErrUnsupported) {
		return fmt.Errorf("the office has pauses: %v; a request to pause: %w", office.Holds, err)
	}
	return nil
}

func officePipe(ctx context.Context, env Env) error {
	office := env.Office()
	if office.Pipe == nil {
		return errors.New("Pipe is nil")
	}
	before, err := office.Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	st, same := office.Pipe(before.Pipe)
	if got := st.Info(); got.Pipe != before.Pipe || got.Name != office.Kind {
		return fmt.Errorf("the pipe %q was opened as %q of a store of kind %q", before.Pipe, got.Pipe, got.Name)
	}
	after, err := same.Admin.Status(ctx)
	if err != nil || after.Identity != before.Identity || after.Pipe != before.Pipe {
		return fmt.Errorf("opened again, the pipe %q of %q is %q of %q, error %w", before.Pipe, before.Identity, after.Pipe, after.Identity, err)
	}
	if st, _ = office.Pipe("another"); st.Info().Pipe != "another" {
		return fmt.Errorf("another pipe was requested, but %q was opened", st.Info().Pipe)
	}
	return nil
}
