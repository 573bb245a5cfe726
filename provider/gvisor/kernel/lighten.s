// Empty: functions without a body, which belong to gVisor, need a file of assembly beside them.
