// Package envelope says how a [postrider.Message] looks on the wire: as the
// payload, untouched, and plain headers beside it. Every broker adapter uses
// this one table, so that a consumer written in any language can read it.
//
//	header                    value                                   written
//	postrider-id              UUID in canonical text                  always
//	postrider-type            what happened                           unless empty
//	postrider-topic           the message's topic                     where the broker's own name for it differs
//	postrider-key             the unit of order                       unless empty or carried as the broker's own key
//	postrider-version         decimal, 1 ...                          unless 0
//	postrider-schema-version  decimal, 1 ...                          unless 0
//	postrider-time            RFC 3339, UTC, up to nanoseconds        unless zero
//	content-type              media type of the payload               unless empty
//	postrider-generation      decimal, 1 ...                          by the relay, on a message that a person sent again
//	postrider-gap             versions such as 3,5-7                  by the relay, behind a dead letter that was skipped
//	postrider-h-NAME          a user header NAME that is reserved     when NAME is content-type or the broker's own
//	postrider-encoded         names of percent-encoded headers, by comma  where values are lines and one would not fit
//	anything else             a user header, verbatim
//
// Header names are compared by their bytes. Other names that begin with
// "postrider-" are reserved; a reader keeps those it does not know among the
// message's headers.
//
// postrider-generation grows each time a person sends the message again, a dead
// letter or a settled message that is replayed; it may leave out numbers. The id
// stays: an inbox that had it drops it. NATS adds it to Nats-Msg-Id, so that the
// stream does not take the message for the one that it had.
//
// postrider-gap names the versions of the message's key before it that will not
// come by themselves: their dead letters are recorded and the key went on without
// them. The key's next message has it, and each one after that while the dead
// letters stand (of very many runs of versions, the newest). Who applies versions
// one by one takes these for applied; a message that a person sends again after
// all comes late, with a generation. [ParseGap] reads the value.
//
// Kafka carries the key as the record's key and header values as bytes. NATS
// carries headers as text lines and has no key, so postrider-key is written;
// names that begin with "Nats-" command the server and therefore travel as
// postrider-h-NAME. A value with a line break, a control character or space at
// an end would not survive there; it travels percent-encoded (as in a URL, a space
// as %20), and postrider-encoded names its header.
//
// A record without postrider-id was not written by Postrider. It is readable
// all the same: its id is derived from where it stands (topic, partition and
// offset, or stream and sequence), so that every delivery of it has the same.
package envelope
