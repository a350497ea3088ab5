--[[
  limited: all that only tasks with limits beside their tier's need.

  It is made where there were such tasks: `rules.limited`.
]]
--- @include "actions"
--- @include "opened"
--- @include "said"
--- @include "take_limits"
--- @include "unbegun"
--- @include "whole"
--- @often append_event append_event_of job_of tell_released tell_unblocked whole of_one_key note_begin
--- @often stay_known forget_idle forget_cooled is_steered stopped_ms read_limit limit_now limits_now
--- @often promised held_of wait_ms refusal shared_start order_group set_tag served another_first takes
--- @often start_of look_at_group first_but of_limit of_groups look_at_limits charge_shared take_limits wake_whole
--- @often look_at_waited count_waited keys_of_ended free_all
