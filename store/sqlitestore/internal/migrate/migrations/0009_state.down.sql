DROP INDEX postrider_parked_state;
