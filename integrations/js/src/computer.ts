/**
 * Computer use: what OpenAI's and Anthropic's models ask for, as actions of
 * {@link Sandbox.computer}. Both models get a screenshot after each call, which `look` takes.
 * Requests that are not known throw a TypeError.
 *
 *     const answer = await sandbox.computer([...fromOpenAI(call.action), look])
 *     const reply = openaiOutput(call.call_id, answer)
 */
import type * as m from './models.js'

/** Take a screenshot. */
export const look: m.ComputerAction = { action: 'screenshot' }

const notch = 100 // pixels per notch of the wheel
const pauseMs = 2000 // OpenAI's wait has no duration
const clicks: Record<string, [m.ComputerAction['button'], number]> = {
  left_click: ['left', 1],
  right_click: ['right', 1],
  middle_click: ['middle', 1],
  double_click: ['left', 2],
  triple_click: ['left', 3],
}
const directions: Record<string, [number, number]> = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] }

/** An action as a model writes it: of OpenAI with `type`, of Anthropic with `action`. */
export interface ModelAction {
  type?: string
  action?: string
  x?: number
  y?: number
  button?: string
  keys?: string[] | null
  path?: m.Point[]
  scroll_x?: number
  scroll_y?: number
  text?: string
  coordinate?: number[]
  start_coordinate?: number[]
  region?: number[]
  scroll_direction?: string
  scroll_amount?: number
  duration?: number
  repeat?: number
}

function need<T>(value: T | null | undefined, name: string): T {
  if (value === null || value === undefined) throw new TypeError(`the action of the model has no ${name}`)
  return value
}

function point(of: number[] | undefined, name: string): m.Point {
  const [x, y] = need(of, name)
  return { x: need(x, name), y: need(y, name) }
}

/** The actions of an action of OpenAI's computer tool (computer_call). */
export function fromOpenAI(a: ModelAction): m.ComputerAction[] {
  const at = { ...(a.x !== undefined && { x: a.x, y: need(a.y, 'y') }), ...(a.keys && { keys: a.keys }) }
  switch (a.type) {
    case 'screenshot':
      return [look]
    case 'click':
    case 'double_click':
      return [
        {
          action: 'click',
          button: (a.button === 'wheel' ? 'middle' : (a.button ?? 'left')) as m.ComputerAction['button'],
          count: a.type === 'click' ? 1 : 2,
          ...at,
        },
      ]
    case 'move':
      return [{ action: 'move', ...at }]
    case 'drag':
      return [{ action: 'drag', path: need(a.path, 'path'), ...at }]
    case 'scroll':
      return [{ action: 'scroll', scrollX: a.scroll_x ?? 0, scrollY: a.scroll_y ?? 0, ...at }]
    case 'keypress':
      return [{ action: 'key', keys: need(a.keys, 'keys') }]
    case 'type':
      return [{ action: 'type', text: need(a.text, 'text') }]
    case 'wait':
      return [{ action: 'wait', durationMs: pauseMs }]
  }
  throw new TypeError(`OpenAI's computer tool has no action ${JSON.stringify(a.type)}`)
}

/** The answer to a computer_call: the screenshot. */
export function openaiOutput(callId: string, answer: m.ComputerResult) {
  const url = `data:image/png;base64,${answer.screenshot?.png ?? ''}`
  return { type: 'computer_call_output' as const, call_id: callId, output: { type: 'computer_screenshot' as const, image_url: url } }
}

/** The actions of the input of Anthropic's computer-use tool (computer_20250124 and later). */
export function fromAnthropic(a: ModelAction): m.ComputerAction[] {
  const at = a.coordinate ? point(a.coordinate, 'coordinate') : {}
  const keys = a.text ? { keys: a.text.split('+') } : {}
  const click = clicks[need(a.action, 'action')]
  if (click) return [{ action: 'click', button: click[0], count: click[1], ...at, ...keys }]
  switch (a.action) {
    case 'screenshot':
      return [look]
    case 'zoom': {
      const { x, y } = point(a.region, 'region')
      const end = point(a.region?.slice(2), 'region')
      return [{ action: 'screenshot', region: { x, y, width: end.x - x, height: end.y - y } }]
    }
    case 'cursor_position':
      return [{ action: 'cursor' }]
    case 'mouse_move':
      return [{ action: 'move', ...at }]
    case 'left_mouse_down':
    case 'left_mouse_up':
      return [{ action: a.action === 'left_mouse_down' ? 'down' : 'up', ...at }]
    case 'left_click_drag': {
      const path = [point(a.start_coordinate, 'start_coordinate'), point(a.coordinate, 'coordinate')]
      return [{ action: 'drag', path, ...keys }]
    }
    case 'scroll': {
      const way = directions[need(a.scroll_direction, 'scroll_direction')]
      const far = notch * need(a.scroll_amount, 'scroll_amount')
      if (!way) throw new TypeError(`there is no direction ${JSON.stringify(a.scroll_direction)}`)
      return [{ action: 'scroll', scrollX: way[0] * far, scrollY: way[1] * far, ...at, ...keys }]
    }
    case 'type':
      return [{ action: 'type', text: need(a.text, 'text') }]
    case 'key':
      return [{ action: 'key', ...keys, ...(a.repeat && { count: a.repeat }) }]
    case 'hold_key':
      return [{ action: 'key', ...keys, durationMs: Math.round(1000 * need(a.duration, 'duration')) }]
    case 'wait':
      return [{ action: 'wait', durationMs: Math.round(1000 * need(a.duration, 'duration')) }]
  }
  throw new TypeError(`Anthropic's computer-use tool has no action ${JSON.stringify(a.action)}`)
}

/** The tool_result of a tool_use: the screenshot, or where the pointer is. */
export function anthropicResult(toolUseId: string, answer: m.ComputerResult) {
  const where = answer.cursor ? [{ type: 'text' as const, text: `X=${answer.cursor.x},Y=${answer.cursor.y}` }] : []
  const data = answer.screenshot?.png
  const picture = data ? [{ type: 'image' as const, source: { type: 'base64' as const, media_type: 'image/png' as const, data } }] : []
  return { type: 'tool_result' as const, tool_use_id: toolUseId, content: [...where, ...picture] }
}
