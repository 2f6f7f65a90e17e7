DROP INDEX postrider_parked_cause;
