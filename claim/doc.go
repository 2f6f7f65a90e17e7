// Package claim leaves large payloads in the database and lets consumers fetch
// them there: the claim check pattern, the extension dataref of CloudEvents.
//
// The relay sends a message whose payload is above a limit without it, with the
// header postrider-dataref as its reference (in a CloudEvent the
// attribute dataref). In the consumer an [Opener] fetches it before the handler
// runs:
//
//	bodies := pgstore.NewBodies(pool)
//	c := consumer.New(source, db, &consumer.Options{Name: "billing", Opener: claim.NewOpener(bodies, nil)})
//
// The payload lives as long as its row: consumers must fetch it within the
// retention. A missing payload is [ErrGone], which counts as a failed attempt and
// finally makes a dead letter of the consumer. A message whose payload was erased is
// acknowledged without an effect. A message that was parked for long, or is
// replayed, may be older than half of the retention: it is sent whole.
//
// A consumer that fetches payloads needs access to the outbox's database, with the right
// to read all payloads there. Messages that are sent whole need neither.
package claim
